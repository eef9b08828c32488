// Images as blocks of pixels. A tensor (images, channels, pixels) lies as planes of pixels, or, with the
// channels last, as rows of channels.
#pragma once
#include <omp.h>

#include <algorithm>
#include <vector>

constexpr long BLOCK = 1024;  // pixels: what is computed for each of them stays in the nearest cache
constexpr long ROW_BLOCK = 64;

struct Sizes {
  long images, channels, pixels;
  bool rows;

  long block() const { return rows ? ROW_BLOCK : BLOCK; }
  // Where a block of pixels of an image starts, and the steps to the next channel and pixel.
  long start(long image, long first) const { return (image * pixels * channels) + first * (rows ? channels : 1); }
};

// Each thread calls start() for its own memory, then the result with (image, first pixel, pixels) for its
// share of the blocks; the shares depend on the number of threads alone.
template <typename Start>
static void for_blocks(const Sizes& sizes, int threads, Start start) {
  const long size = sizes.block(), blocks = (sizes.pixels + size - 1) / size, total = sizes.images * blocks;
#pragma omp parallel num_threads(threads)
  {
    auto work = start();
#pragma omp for schedule(static)
    for (long b = 0; b < total; ++b) {
      const long first = b % blocks * size;
      work(b / blocks, first, std::min(size, sizes.pixels - first));
    }
  }
}

static inline float inverse(float n) {
  const float over = 1.0f / n;
  return over > 3.402823466e+38f ? 0.0f : over;  // of a zero patch, too
}
