// Patch norms: squares summed over the channels, then over each window; and the way back.
#include <cmath>

#include "blocks.h"

struct Windows {
  long height, width, out_height, out_width;
  long size[2], step[2], pad[2], gap[2];
};

// The outputs [first, last) of a row whose tap at `offset` falls inside `length` pixels.
static inline void inside(long offset, long step, long length, long outputs, long& first, long& last) {
  first = offset >= 0 ? 0 : (-offset + step - 1) / step;
  last = offset >= length ? 0 : std::min(outputs, (length - 1 - offset) / step + 1);
}

// Calls visit(output row, first output, last output, input row, input of output 0) for every tap.
template <typename Visit>
static inline void for_taps(const Windows& w, Visit visit) {
  for (long oy = 0; oy < w.out_height; ++oy)
    for (long ky = 0; ky < w.size[0]; ++ky) {
      const long iy = oy * w.step[0] + ky * w.gap[0] - w.pad[0];
      if (iy < 0 || iy >= w.height) continue;
      for (long kx = 0; kx < w.size[1]; ++kx) {
        const long offset = kx * w.gap[1] - w.pad[1];
        long first, last;
        inside(offset, w.step[1], w.width, w.out_width, first, last);
        visit(oy, first, last, iy, offset);
      }
    }
}

extern "C" {

// sum x^2 over the channels of each pixel.
void squares(const float* x, float* sums, Sizes sizes, int threads) {
  for_blocks(sizes, threads, [&] {
    return [&](long image, long first, long count) {
      const float* from = x + sizes.start(image, first);
      float* __restrict__ sum = sums + image * sizes.pixels + first;
      if (sizes.rows) {
        for (long p = 0; p < count; ++p) {
          const float* row = from + p * sizes.channels;
          float total = 0;
#pragma omp simd reduction(+ : total)
          for (long c = 0; c < sizes.channels; ++c) total += row[c] * row[c];
          sum[p] = total;
        }
        return;
      }
      std::fill(sum, sum + count, 0.0f);
      for (long c = 0; c < sizes.channels; ++c) {
        const float* plane = from + c * sizes.pixels;
#pragma omp simd
        for (long p = 0; p < count; ++p) sum[p] += plane[p] * plane[p];
      }
    };
  });
}

// The root of the sum over each window.
void window_norms(const float* sums, float* norm, Windows w, long images, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long image = 0; image < images; ++image) {
    const float* from = sums + image * w.height * w.width;
    float* to = norm + image * w.out_height * w.out_width;
    std::fill(to, to + w.out_height * w.out_width, 0.0f);
    for_taps(w, [&](long oy, long first, long last, long iy, long offset) {
      const float* in = from + iy * w.width + offset;
      float* out = to + oy * w.out_width;
      if (w.step[1] == 1)
        for (long ox = first; ox < last; ++ox) out[ox] += in[ox];
      else
        for (long ox = first; ox < last; ++ox) out[ox] += in[ox * w.step[1]];
    });
    for (long i = 0; i < w.out_height * w.out_width; ++i) to[i] = __builtin_sqrtf(to[i]);
  }
}

// What each pixel is multiplied with: grad / norm of all windows that it is in. Nothing of zero patches.
void spread(const float* grad, const float* norm, float* pixel, Windows w, long images, int threads) {
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> each(w.out_height * w.out_width);
#pragma omp for schedule(static)
    for (long image = 0; image < images; ++image) {
      const long start = image * w.out_height * w.out_width;
      for (long i = 0; i < w.out_height * w.out_width; ++i) each[i] = grad[start + i] * inverse(norm[start + i]);
      float* to = pixel + image * w.height * w.width;
      std::fill(to, to + w.height * w.width, 0.0f);
      for_taps(w, [&](long oy, long first, long last, long iy, long offset) {
        float* out = to + iy * w.width + offset;
        const float* in = each.data() + oy * w.out_width;
        if (w.step[1] == 1)
          for (long ox = first; ox < last; ++ox) out[ox] += in[ox];
        else
          for (long ox = first; ox < last; ++ox) out[ox * w.step[1]] += in[ox];
      });
    }
  }
}

}  // extern "C"
