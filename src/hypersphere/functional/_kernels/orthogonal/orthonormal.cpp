// U = Q T by blocks of columns B (Gram-Schmidt): with B^T B = S^T S, S upper triangular,
//
//   B <- B S^{-1},  T_rest = S^{-T} (B^T rest) for the B before,  rest <- rest - B T_rest.
//
// Matrices lie by rows, and each thread keeps rows of its own: what threads share are sums over rows, and the rows of T.
#include "blocks.h"

// a <- a + factor b, for rows of a block: of a length that the compiler knows, though a part of it would do.
static inline void add(float* a, float factor, const float* b) {
#pragma omp simd
  for (int j = 0; j < WIDTH; ++j) a[j] += factor * b[j];
}

static inline void multiply(float* a, float factor) {
#pragma omp simd
  for (int j = 0; j < WIDTH; ++j) a[j] *= factor;
}

// S^{-1} of a Gram matrix, both (size, size) within rows of WIDTH numbers. S takes the place of what the Gram matrix has
// right of its diagonal. Not a number where that is not positive definite.
static void inverse_root(float* gram, float* inverse, int size) {
  for (int p = 0; p < size; ++p) {
    float* row = gram + p * WIDTH;
    multiply(row, 1 / std::sqrt(row[p]));
    for (int i = p + 1; i < size; ++i) add(gram + i * WIDTH, -row[i], row);
  }
  for (int i = size - 1; i >= 0; --i) {
    float *own = inverse + i * WIDTH, *row = gram + i * WIDTH;
    std::fill_n(own, WIDTH, 0.0f);
    own[i] = 1;
    for (int k = i + 1; k < size; ++k) add(own, -row[k], inverse + k * WIDTH);
    multiply(own, 1 / row[i]);
  }
}

// Q in the place of U (d, d), T right of its diagonal blocks, and the inverses (d, WIDTH) of those; `sums` is memory of
// (team, d, WIDTH).
static void orthonormalize_one(const Product& product, const Member& thread, float* q, float* t, float* inverses,
                               float* sums, int d) {
  const size_t strip = (size_t)d * WIDTH;
  const int from = thread.begin(d), rows = thread.end(d) - from;
  const auto memory = scratch(2 * WIDTH * WIDTH + (size_t)(rows + 1) * WIDTH);
  float *gram = memory.get(), *inverse = gram + WIDTH * WIDTH, *block = inverse + WIDTH * WIDTH;
  for (int first = 0; first < d; first += WIDTH) {
    const int last = std::min(first + WIDTH, d), size = last - first, rest = d - last;
    float* own = q + (size_t)from * d + first;
    // B^T (B, rest) over the rows of this thread. By columns, as BLAS reads it, all of it is transposed.
    product('N', 'T', d - first, size, rows, 1, own, d, own, d, 0, sums + thread.me * strip, d);
    if (rows == 0) std::fill_n(sums + thread.me * strip, strip, 0.0f);
    thread.wait();
    // Every thread finds S^{-1} for itself, rather than wait for another one's.
    std::fill_n(gram, WIDTH * WIDTH, 0.0f);
    for (int part = 0; part < thread.team; ++part)
      for (int i = 0; i < size; ++i)
#pragma omp simd
        for (int j = 0; j < size; ++j) gram[i * WIDTH + j] += sums[part * strip + (size_t)i * d + j];
    inverse_root(gram, inverse, size);
    if (thread.me == 0) std::copy_n(inverse, size * WIDTH, inverses + (size_t)first * WIDTH);
    const int begin = thread.begin(rest), columns = thread.end(rest) - begin;
    float* total = sums + size + begin;
    for (int part = 1; part < thread.team; ++part)
      for (int i = 0; i < size; ++i)
#pragma omp simd
        for (int j = 0; j < columns; ++j) total[(size_t)i * d + j] += total[part * strip + (size_t)i * d + j];
    float* share = t + (size_t)first * d + last;
    product('N', 'T', columns, size, size, 1, total, d, inverse, WIDTH, 0, share + begin, d);
    product('N', 'N', size, rows, size, 1, inverse, WIDTH, own, d, 0, block, WIDTH);
    for (int i = 0; i < rows; ++i) std::copy_n(block + (size_t)i * WIDTH, size, own + (size_t)i * d);
    thread.wait();
    product('N', 'N', rest, rows, size, -1, share, d, own, d, 1, own + size, d);
  }
  thread.wait();  // the next matrix takes the same sums
}

extern "C" void orthonormalize(void* gemm, float* q, float* t, float* inverses, int d, int count, int threads) {
  const size_t matrix = (size_t)d * d, strip = (size_t)d * WIDTH;
  const auto sums = scratch(threads * strip);
#pragma omp parallel num_threads(threads)
  for_each(count, d, [&](size_t k, const Member& thread) {
    float* own = sums.get() + (thread.team == 1 ? omp_get_thread_num() * strip : 0);
    orthonormalize_one(Product{(Gemm)gemm}, thread, q + k * matrix, t + k * matrix, inverses + k * strip, own, d);
  });
}
