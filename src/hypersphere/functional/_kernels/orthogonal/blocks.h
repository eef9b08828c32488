// What the eliminations by blocks share: products by torch's own BLAS, shares of a team of threads, and inverses of
// the blocks on the diagonal. Matrices lie by columns; a vector is a column.
//
// A team of threads goes through each function together, as starting one costs more than waiting for the others: every
// thread has columns of its own from the beginning to the end, so that they stay in its cache, and calls a BLAS that
// sees a team at work and starts no threads itself.
#pragma once
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>

using Gemm = void (*)(const char*, const char*, const int*, const int*, const int*, const float*, const float*,
                      const int*, const float*, const int*, const float*, float*, const int*);

// Wide enough for products at full speed, and narrow enough for the inverses to cost little.
constexpr int WIDTH = 64;

struct Product {
  Gemm gemm;
  // c <- keep c + scale a b
  void operator()(char turn_a, char turn_b, int rows, int columns, int inner, float scale, const float* a, int step_a,
                  const float* b, int step_b, float keep, float* c, int step_c) const {
    if (rows > 0 && columns > 0 && inner > 0)
      gemm(&turn_a, &turn_b, &rows, &columns, &inner, &scale, a, &step_a, b, &step_b, &keep, c, &step_c);
  }
};

// Memory that lies as torch's does: products may round differently where it lies otherwise, and the same run would not
// give the same numbers twice.
static std::unique_ptr<float, decltype(&std::free)> scratch(size_t count) {
  return {(float*)std::aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64), std::free};
}

// A thread of the team, and its share of `count` things.
struct Member {
  int me = omp_get_thread_num(), team = omp_get_num_threads();
  // Multiples of 16 numbers: a cache line has one writer, and memory lies as products like it.
  int begin(int count) const { return me == 0 ? 0 : std::min(count, (count * me / team + 15) / 16 * 16); }
  int end(int count) const { return me + 1 == team ? count : Member{me + 1, team}.begin(count); }
  bool owns(int column) const { return column / WIDTH % team == me; }
  void wait() const {
    if (team == 1) return;
#pragma omp barrier
  }
};

static inline int last_block(int d) { return (d - 1) / WIDTH * WIDTH; }

// The inverse of a block, in its place (Gauss and Jordan). With signs, of the block minus diag(+-1), chosen so that no
// pivot is below 1. Gives whether all pivots are numbers.
static bool invert(float* block, int size, int* signs) {
  float column[WIDTH];
  bool finite = true;
  for (int p = 0; p < size; ++p) {
    float* own = block + p * WIDTH;
    if (signs) own[p] -= signs[p] = own[p] > 0 ? -1 : 1;
    finite = finite && std::isfinite(own[p]);
    const float inverse = 1.0f / own[p];
    std::copy_n(own, size, column);
    column[p] = 0;
    for (int j = 0; j < size; ++j) {
      if (j == p) continue;
      float* other = block + j * WIDTH;
      const float share = other[p] * inverse;
#pragma omp simd
      for (int i = 0; i < size; ++i) other[i] -= column[i] * share;
      other[p] = share;
    }
#pragma omp simd
    for (int i = 0; i < size; ++i) own[i] = -column[i] * inverse;
    own[p] = inverse;
  }
  return finite;
}

// Inverts the block of A (d, d) that begins at `first`, into `inverses` (d, WIDTH).
[[maybe_unused]] static bool invert_block(const float* a, float* inverses, int first, int d, int* signs) {
  const int size = std::min(WIDTH, d - first);
  float* inverse = inverses + (size_t)first * WIDTH;
  for (int j = 0; j < size; ++j) std::copy_n(a + (size_t)(first + j) * d + first, size, inverse + j * WIDTH);
  return invert(inverse, size, signs ? signs + first : nullptr);
}

// Runs work(k, member) for `count` matrices. Threads that share a matrix wait for one another and for its memory, so each
// takes matrices of its own as long as there are enough for all; the rest is done by the team together, unless a matrix
// is through before the others have started.
template <class Work>
static void for_each(int count, int d, Work work) {
  const Member thread;
  const int alone = d > 2 * WIDTH ? count / thread.team * thread.team : count;
  for (int k = thread.me; k < alone; k += thread.team) work((size_t)k, Member{0, 1});
  for (int k = alone; k < count; ++k) work((size_t)k, thread);
}
