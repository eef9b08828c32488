// Symmetric matrices, for half of the work: products that are known to be symmetric or skew, and elimination,
// M + s I = L D L^T, for several shifts s together.
#include "blocks.h"

// A = L D L^T in the place of what is below the diagonal blocks of A, by a team or by a thread alone. L has ones on its
// diagonal, D has blocks, of which the inverses are kept. `panel` is memory of (d, WIDTH).
static void factorize(const Product& product, const Member& thread, float* a, float* inverses, float* panel, int d) {
  if (thread.owns(0)) invert_block(a, inverses, 0, d, nullptr);
  thread.wait();
  for (int first = 0; first + WIDTH < d; first += WIDTH) {
    const int last = first + WIDTH, below = d - last, from = thread.begin(below), rows = thread.end(below) - from;
    float* left = a + (size_t)first * d + last;
    for (int j = 0; j < WIDTH; ++j) std::copy_n(left + (size_t)j * d + from, rows, panel + (size_t)j * d + from);
    const float* inverse = inverses + (size_t)first * WIDTH;
    product('N', 'N', rows, WIDTH, WIDTH, 1, panel + from, d, inverse, WIDTH, 0, left + from, d);
    thread.wait();
    for (int next = last; next < d; next += WIDTH) {
      if (!thread.owns(next)) continue;
      product('N', 'T', d - next, std::min(WIDTH, d - next), WIDTH, -1, left + (next - last), d, panel + (next - last),
              d, 1, a + (size_t)next * d + next, d);
      // The next block is inverted while others are still at their columns.
      if (next == last) invert_block(a, inverses, next, d, nullptr);
    }
    thread.wait();
  }
}

// v <- (L D L^T)^{-1} v, for some columns; `part` is memory of (WIDTH, n).
static void solve_columns(const Product& product, const float* a, const float* inverses, float* v, float* part, int d,
                          int n) {
  for (int first = 0; first + WIDTH < d; first += WIDTH) {
    const int last = first + WIDTH;
    product('N', 'N', d - last, n, WIDTH, -1, a + (size_t)first * d + last, d, v + first, d, 1, v + last, d);
  }
  for (int first = last_block(d); first >= 0; first -= WIDTH) {
    const int last = std::min(first + WIDTH, d), size = last - first;
    product('N', 'N', size, n, size, 1, inverses + (size_t)first * WIDTH, WIDTH, v + first, d, 0, part, WIDTH);
    product('T', 'N', size, n, d - last, -1, a + (size_t)first * d + last, d, v + last, d, 1, part, WIDTH);
    for (int j = 0; j < n; ++j) std::copy_n(part + (size_t)j * WIDTH, size, v + (size_t)j * d + first);
  }
}

// y <- (L D L^T)^{-1} v, for this thread's share of n columns.
static void solve_share(const Product& product, const Member& thread, const float* a, const float* inverses,
                        const float* v, float* y, int d, int n) {
  const int from = thread.begin(n), columns = thread.end(n) - from;
  const auto part = scratch((size_t)std::max(columns, 1) * WIDTH);
  y += (size_t)from * d;
  std::copy_n(v + (size_t)from * d, (size_t)columns * d, y);
  solve_columns(product, a, inverses, y, part.get(), d, columns);
}

extern "C" {

// C = scale A B, or scale A^T B with `turned`, for matrices by rows of which the product is symmetric (sign 1) or skew
// (sign -1): what is right of the diagonal is computed, and mirrored. By columns, as BLAS reads it, all is transposed.
void half_product(void* gemm, const float* a, const float* b, float* c, float scale, int d, int turned, int sign,
                  int threads) {
  constexpr int TILE = 32;  // both sides of a transposition stay in the cache
  const Product product{(Gemm)gemm};
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(dynamic)
    for (int first = 0; first < d; first += WIDTH)
      product('N', turned ? 'T' : 'N', d - first, std::min(WIDTH, d - first), d, scale, b + first, d,
              a + (turned ? first : (size_t)first * d), d, 0, c + (size_t)first * d + first, d);
#pragma omp for schedule(dynamic)
    for (int row = 0; row < d; row += TILE)
      for (int column = 0; column <= row; column += TILE)
        for (int i = row; i < std::min(row + TILE, d); ++i) {
          for (int j = column; j < std::min(column + TILE, i); ++j) c[(size_t)i * d + j] = sign * c[(size_t)j * d + i];
          if (sign < 0) c[(size_t)i * d + i] = 0;
        }
  }
}

// y_k = (M + s_k I)^{-1} V for a positive definite matrix, `count` shifts and n columns. What `solve_again` needs stays in
// a (count, d, d) and inverses (count, d, WIDTH).
void solve(void* gemm, const float* m, const float* shifts, const float* v, float* a, float* inverses, float* y, int d,
           int n, int count, int threads) {
  const Product product{(Gemm)gemm};
  const auto panels = scratch((size_t)count * d * WIDTH);
#pragma omp parallel num_threads(threads)
  for_each(count, d, [&](size_t k, const Member& thread) {
    float *own = a + k * d * d, *inverse = inverses + k * d * WIDTH;
    for (int j = 0; j < d; ++j) {
      if (!thread.owns(j)) continue;
      const int from = j / WIDTH * WIDTH;
      std::copy_n(m + (size_t)j * d + from, d - from, own + (size_t)j * d + from);
      own[(size_t)j * d + j] += shifts[k];
    }
    factorize(product, thread, own, inverse, panels.get() + k * d * WIDTH, d);
    solve_share(product, thread, own, inverse, v, y + k * n * d, d, n);
  });
}

void solve_again(void* gemm, const float* a, const float* inverses, const float* v, float* y, int d, int n, int count,
                 int threads) {
#pragma omp parallel num_threads(threads)
  for_each(count, d, [&](size_t k, const Member& thread) {
    solve_share(Product{(Gemm)gemm}, thread, a + k * d * d, inverses + k * d * WIDTH, v, y + k * n * d, d, n);
  });
}

}  // extern "C"
