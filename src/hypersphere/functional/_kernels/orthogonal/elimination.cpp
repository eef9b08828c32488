// Elimination by blocks without exchanges of rows. The blocks on the diagonal are inverted, so that all other work is in
// products, by torch's own BLAS. Matrices lie by columns; a vector is a column.
//
// A team of threads goes through each function together: every thread has columns of its own from the beginning to the
// end, so that they stay in its cache, and calls a BLAS that sees a team at work and starts no threads itself.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <vector>

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

// A = L D U in the place of A (d, d); L and U have ones on their diagonals, D has blocks. Below the diagonal stands L,
// above it D U, and `inverses` gets the inverses of the blocks of D. The columns to the right of A, up to (d, total) in
// all, are multiplied by the inverse of L. `panel` is memory of (d, WIDTH). `finite` is set to false where a pivot
// leaves the range of numbers.
static void factorize(const Product& product, float* a, float* inverses, float* panel, int d, int total, int* signs,
                      bool& finite) {
  const Member thread;
  for (int first = 0; first < d; first += WIDTH) {
    const int last = std::min(first + WIDTH, d), size = last - first, below = d - last;
    float *inverse = inverses + (size_t)first * WIDTH, *left = a + (size_t)first * d + last;
#pragma omp single
    {
      for (int j = 0; j < size; ++j) std::copy_n(a + (size_t)(first + j) * d + first, size, inverse + j * WIDTH);
      if (!invert(inverse, size, signs ? signs + first : nullptr)) finite = false;
    }
    const int from = thread.begin(below), rows = thread.end(below) - from;
    product('N', 'N', rows, size, size, 1, left + from, d, inverse, WIDTH, 0, panel + from, d);
    for (int j = 0; j < size; ++j) std::copy_n(panel + (size_t)j * d + from, rows, left + (size_t)j * d + from);
#pragma omp barrier
    for (int next = last; next < total; next += WIDTH) {
      if (!thread.owns(next)) continue;
      float* column = a + (size_t)next * d;
      product('N', 'N', below, std::min(WIDTH, total - next), size, -1, panel, d, column + first, d, 1, column + last, d);
    }
#pragma omp barrier
  }
}

// y with D U y = v, for some columns; v is used up.
static void solve_upper(const Product& product, const float* a, const float* inverses, float* v, float* y, int d, int n) {
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

// I - W by columns, which is I + W by rows, of the numbers above the diagonal of W.
static void identity_minus_skew(const float* numbers, float* a, int d) {
  constexpr int TILE = 32;  // both sides of a transposition stay in the cache
#pragma omp for schedule(static, WIDTH)
  for (int i = 0; i < d; ++i) {
    a[(size_t)i * d + i] = 1;
    std::copy_n(numbers + start_of_row(i, d), d - 1 - i, a + (size_t)i * d + i + 1);
  }
#pragma omp for schedule(static, WIDTH / TILE)
  for (int row = 0; row < d; row += TILE)
    for (int column = 0; column <= row; column += TILE)
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

extern "C" {

// Y = (I - W)^{-1} V and R V = 2 Y - V, for n columns of d numbers. `work` is (d, d + n), `inverses` (d, WIDTH).
// Gives the error that rounding has made, or NaN.
float cayley(void* gemm, const float* numbers, const float* v, float* work, float* inverses, float* y, float* turned,
             int d, int n, int threads) {
  const Product product{(Gemm)gemm};
  const auto panel = scratch((size_t)d * WIDTH);
  float* right = work + (size_t)d * d;
  float worst = 0;
  bool finite = true;
#pragma omp parallel num_threads(threads)
  {
    const Member thread;
    const int from = thread.begin(n), columns = thread.end(n) - from;
    const size_t own = (size_t)from * d, count = (size_t)columns * d;
    identity_minus_skew(numbers, work, d);
    std::copy_n(v + own, count, right + own);
#pragma omp barrier
    factorize(product, work, inverses, panel.get(), d, d + n, nullptr, finite);
    solve_upper(product, work, inverses, right + own, y + own, d, columns);
    for (size_t i = own; i < own + count; ++i) turned[i] = 2 * y[i] - v[i];
    const float error = missed(y + own, v + own, d, columns);
#pragma omp critical
    worst = larger(worst, error);
  }
  return finite ? worst : NAN;
}

// Z = 2 (I - W)^{-T} G, which uses up g, and, where asked for, what is above the diagonal of Z Y^T - Y Z^T.
void cayley_gradient(void* gemm, const float* work, const float* inverses, const float* y, float* g, float* z,
                     float* numbers, int d, int n, int threads) {
  const Product product{(Gemm)gemm};
#pragma omp parallel num_threads(threads)
  {
    const Member thread;
    const int from = thread.begin(n), columns = thread.end(n) - from;
    const size_t own = (size_t)from * d, count = (size_t)columns * d;
    solve_adjoint(product, work, inverses, g + own, z + own, d, columns);
    for (size_t i = own; i < own + count; ++i) z[i] *= 2;
#pragma omp barrier
    const auto memory = scratch(numbers ? (size_t)d * WIDTH : 16);
    float* rows = memory.get();
    for (int first = 0; numbers && first < d; first += WIDTH) {
      if (!thread.owns(first)) continue;
      const int size = std::min(WIDTH, d - first), right = d - first;
      product('N', 'T', right, size, n, 1, y + first, d, z + first, d, 0, rows, right);
      product('N', 'T', right, size, n, -1, z + first, d, y + first, d, 1, rows, right);
      for (int i = 0; i < size; ++i)
        std::copy_n(rows + (size_t)i * right + i + 1, right - 1 - i, numbers + start_of_row(first + i, d));
    }
  }
}

// y = A^{-1} V for a positive definite A, where no row needs an exchange either: `work` is A and V, (d, d + n).
void solve(void* gemm, float* work, float* inverses, float* y, int d, int n, int threads) {
  const Product product{(Gemm)gemm};
  const auto panel = scratch((size_t)d * WIDTH);
  bool finite = true;  // what went wrong shows in the solution
#pragma omp parallel num_threads(threads)
  {
    const Member thread;
    const int from = thread.begin(n), columns = thread.end(n) - from;
    factorize(product, work, inverses, panel.get(), d, d + n, nullptr, finite);
    const size_t own = (size_t)from * d;
    solve_upper(product, work, inverses, work + (size_t)d * d + own, y + own, d, columns);
  }
}

// z = A^{-T} G of a matrix that was eliminated; g is used up.
void solve_again(void* gemm, const float* work, const float* inverses, float* g, float* z, int d, int n, int threads) {
#pragma omp parallel num_threads(threads)
  {
    const Member thread;
    const int from = thread.begin(n), columns = thread.end(n) - from;
    const size_t own = (size_t)from * d;
    solve_adjoint(Product{(Gemm)gemm}, work, inverses, g + own, z + own, d, columns);
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
  factorize(Product{(Gemm)gemm}, q, inverses, panel.get(), d, d, signs.data(), finite);
  int result = 1;
  for (int sign : signs) result *= -sign;
  return result;
}

}  // extern "C"
