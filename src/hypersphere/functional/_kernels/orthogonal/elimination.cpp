// Elimination by blocks without exchanges of rows. The blocks on the diagonal are inverted, so that all other work is in
// products.
#include <vector>

#include "blocks.h"

// A = L D U in the place of A (d, d), by a team or by a thread alone; L and U have ones on their diagonals, D has blocks.
// Below the diagonal stands L, above it D U, and `inverses` gets the inverses of the blocks of D. The columns to the right
// of A, up to (d, total) in all, are multiplied by the inverse of L. `panel` is memory of (d, WIDTH). `finite` is set to
// false where a pivot leaves the range of numbers.
static void factorize(const Product& product, const Member& thread, float* a, float* inverses, float* panel, int d,
                      int total, int* signs, bool& finite) {
  if (thread.owns(0) && !invert_block(a, inverses, 0, d, signs)) finite = false;
  thread.wait();
  for (int first = 0; first < d; first += WIDTH) {
    const int last = std::min(first + WIDTH, d), size = last - first, below = d - last;
    const int from = thread.begin(below), rows = thread.end(below) - from;
    float* left = a + (size_t)first * d + last + from;
    product('N', 'N', rows, size, size, 1, left, d, inverses + (size_t)first * WIDTH, WIDTH, 0, panel + from, d);
    for (int j = 0; j < size; ++j) std::copy_n(panel + (size_t)j * d + from, rows, left + (size_t)j * d);
    thread.wait();
    for (int next = last; next < total; next += WIDTH) {
      if (!thread.owns(next)) continue;
      float* column = a + (size_t)next * d;
      const int columns = std::min(WIDTH, total - next);
      product('N', 'N', below, columns, size, -1, panel, d, column + first, d, 1, column + last, d);
      // The next block is inverted while others are still at their columns.
      if (next == last && next < d && !invert_block(a, inverses, next, d, signs)) finite = false;
    }
    thread.wait();
  }
}

// y with D U y = v, for some columns; v is used up.
static void solve_upper(const Product& product, const float* a, const float* inverses, float* v, float* y, int d,
                        int n) {
  for (int first = last_block(d); first >= 0; first -= WIDTH) {
    const int last = std::min(first + WIDTH, d), size = last - first;
    product('N', 'N', size, n, d - last, -1, a + (size_t)last * d + first, d, y + last, d, 1, v + first, d);
    product('N', 'N', size, n, size, 1, inverses + (size_t)first * WIDTH, WIDTH, v + first, d, 0, y + first, d);
  }
}

// z with A^T z = g, for some columns; g is used up.
static void solve_adjoint(const Product& product, const float* a, const float* inverses, float* g, float* z, int d,
                          int n) {
  for (int first = 0; first < d; first += WIDTH) {
    const int last = std::min(first + WIDTH, d), size = last - first;
    product('T', 'N', size, n, size, 1, inverses + (size_t)first * WIDTH, WIDTH, g + first, d, 0, z + first, d);
    product('T', 'N', d - last, n, size, -1, a + (size_t)last * d + first, d, z + first, d, 1, g + last, d);
  }
  for (int first = last_block(d) - WIDTH; first >= 0; first -= WIDTH) {
    const int last = first + WIDTH;
    product('T', 'N', WIDTH, n, d - last, -1, a + (size_t)first * d + last, d, z + last, d, 1, z + first, d);
  }
}

// Where the numbers of row i begin that are right of the diagonal.
static inline size_t start_of_row(size_t i, size_t d) { return i * d - i * (i + 1) / 2; }

static inline size_t packed_length(size_t d) { return d * (d - 1) / 2; }

// I - W by columns, which is I + W by rows, of the numbers above the diagonal of W.
static void identity_minus_skew(const Member& thread, const float* numbers, float* a, int d) {
  constexpr int TILE = 32;  // both sides of a transposition stay in the cache
  for (int i = 0; i < d; ++i) {
    if (!thread.owns(i)) continue;
    a[(size_t)i * d + i] = 1;
    std::copy_n(numbers + start_of_row(i, d), d - 1 - i, a + (size_t)i * d + i + 1);
  }
  thread.wait();
  for (int row = 0; row < d; row += TILE)
    for (int column = 0; column <= row && thread.owns(row); column += TILE)
      for (int i = row; i < std::min(row + TILE, d); ++i)
        for (int j = column; j < std::min(column + TILE, i); ++j) a[(size_t)i * d + j] = -a[(size_t)j * d + i];
}

static double inner(const float* a, const float* b, int d) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < d; ++i) sum += (double)a[i] * b[i];
  return sum;
}

// The larger one; a NaN on either side stays.
static inline float larger(float a, float b) { return std::isnan(a) || a >= b ? a : b; }

// As y.W y = 0, y.v = |y|^2 wherever v = y - W y; by how much this is missed, beside |y| |v|, tells what rounding did.
static float missed(const float* y, const float* v, int d, int n) {
  float worst = 0;
  for (int j = 0; j < n; ++j, y += d, v += d) {
    const double length = inner(v, v, d), own = inner(y, y, d);
    if (length == 0 && own == 0) continue;
    worst = larger(worst, std::fabs(inner(y, v, d) - own) / std::sqrt(own * length));
  }
  return worst;
}

// The numbers above the diagonal of Z Y^T - Y Z^T, for n columns; `rows` is memory of (d, WIDTH) for each thread.
static void skew_outer(const Product& product, const Member& thread, const float* z, const float* y, float* rows,
                       float* numbers, int d, int n) {
  for (int first = 0; first < d; first += WIDTH) {
    if (!thread.owns(first)) continue;
    const int size = std::min(WIDTH, d - first), right = d - first;
    product('N', 'T', right, size, n, 1, y + first, d, z + first, d, 0, rows, right);
    product('N', 'T', right, size, n, -1, z + first, d, y + first, d, 1, rows, right);
    for (int i = 0; i < size; ++i)
      std::copy_n(rows + (size_t)i * right + i + 1, right - 1 - i, numbers + start_of_row(first + i, d));
  }
}

extern "C" {

// Y = (I - W)^{-1} V and R V = 2 Y - V, for n columns of d numbers, of `count` matrices. `work` is (d, d + n) for each,
// `inverses` (d, WIDTH). Gives the error that rounding has made, or NaN.
float cayley(void* gemm, const float* numbers, const float* v, float* work, float* inverses, float* y, float* turned,
             int d, int n, int count, int threads) {
  const Product product{(Gemm)gemm};
  const auto panels = scratch((size_t)count * d * WIDTH);
  float worst = 0;
  bool finite = true;
#pragma omp parallel num_threads(threads)
  for_each(count, d, [&](size_t k, const Member& thread) {
    const int from = thread.begin(n), columns = thread.end(n) - from;
    const size_t first = (k * n + from) * d, size = (size_t)columns * d;
    float *a = work + k * d * (d + n), *inverse = inverses + k * d * WIDTH, *right = a + (size_t)(d + from) * d;
    identity_minus_skew(thread, numbers + k * packed_length(d), a, d);
    std::copy_n(v + first, size, right);
    thread.wait();
    factorize(product, thread, a, inverse, panels.get() + k * d * WIDTH, d, d + n, nullptr, finite);
    solve_upper(product, a, inverse, right, y + first, d, columns);
    for (size_t i = first; i < first + size; ++i) turned[i] = 2 * y[i] - v[i];
    const float error = missed(y + first, v + first, d, columns);
#pragma omp critical
    worst = larger(worst, error);
  });
  return finite ? worst : NAN;
}

// Z = 2 (I - W)^{-T} G, which uses up g, and, where asked for, what is above the diagonal of Z Y^T - Y Z^T.
void cayley_gradient(void* gemm, const float* work, const float* inverses, const float* y, float* g, float* z,
                     float* numbers, int d, int n, int count, int threads) {
  const Product product{(Gemm)gemm};
#pragma omp parallel num_threads(threads)
  {
    const auto memory = scratch(numbers ? (size_t)d * WIDTH : 16);
    for_each(count, d, [&](size_t k, const Member& thread) {
      const int from = thread.begin(n), columns = thread.end(n) - from;
      const size_t first = (k * n + from) * d, size = (size_t)columns * d;
      solve_adjoint(product, work + k * d * (d + n), inverses + k * d * WIDTH, g + first, z + first, d, columns);
      for (size_t i = first; i < first + size; ++i) z[i] *= 2;
      thread.wait();
      if (!numbers) return;
      float* slopes = numbers + k * packed_length(d);
      skew_outer(product, thread, z + k * n * d, y + k * n * d, memory.get(), slopes, d, n);
    });
  }
}

// The determinant of an orthogonal matrix Q, which is used up. Householder's d reflections turn Q into a diagonal matrix
// of signs S, so that det Q = (-1)^d det S. Their signs are those that an elimination of Q - S, without exchanges of
// rows, chooses one after the other: each the opposite of the pivot's, so that no pivot is below 1.
int determinant(void* gemm, float* q, float* inverses, int d, int threads) {
  std::vector<int> signs(d);
  const auto panel = scratch((size_t)d * WIDTH);
  bool finite = true;  // what went wrong shows in the solution
#pragma omp parallel num_threads(threads)
  for_each(1, d, [&](size_t, const Member& thread) {
    factorize(Product{(Gemm)gemm}, thread, q, inverses, panel.get(), d, d, signs.data(), finite);
  });
  int result = 1;
  for (int sign : signs) result *= -sign;
  return result;
}

}  // extern "C"
