// Steps of Lanczos with one pass over the matrix each: what they cost is reading it. Each thread keeps rows of its own
// through all steps, which stay in its cache, and a copy of the vectors: so a step has one wait.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

static double inner_product(const float* a, const float* b, int d) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < d; ++i) sum += (double)a[i] * b[i];
  return sum;
}

// y_i <- (A x)_i for some rows of a matrix by rows; or y <- sum_i (A x)_i a_i over them, which is their part of A^T A x.
// Entries are multiplied by `scale`.
static void apply(const float* a, const float* x, float* y, int d, int from, int to, float scale, bool squared) {
  if (squared) std::fill(y, y + d, 0.0f);
  for (int i = from; i < to; ++i) {
    const float* row = a + (size_t)i * d;
    float inner = 0;
#pragma omp simd reduction(+ : inner)
    for (int j = 0; j < d; ++j) inner += row[j] * x[j];
    inner *= scale;
    if (!squared) {
      y[i] = inner;
      continue;
    }
    inner *= scale;
#pragma omp simd
    for (int j = 0; j < d; ++j) y[j] += row[j] * inner;
  }
}

extern "C" {

// Diagonal and off-diagonal of T, for a symmetric A or a skew one (sign 1: the diagonal is 0), or for A^T A. `start` is a
// unit vector. Gives the largest entry of A, in the unit (or its square) of which T is; 0 for A = 0.
float lanczos(const float* a, const float* start, double* diagonal, double* off, int d, int steps, bool squared,
              bool skew, int threads) {
  // By turns of two, so that nobody writes into what another one still reads.
  std::vector<float> results(2 * (size_t)d * (squared ? threads : 1)), tops(threads, 0.0f);
  float largest = 0;
#pragma omp parallel num_threads(threads)
  {
    const int me = omp_get_thread_num(), team = omp_get_num_threads(), parts = squared ? team : 1;
    const int from = d * me / team, to = d * (me + 1) / team;
    std::vector<float> x(start, start + d), previous(d, 0.0f), y(d);
    float top = 0;
#pragma omp simd reduction(max : top)
    for (size_t i = (size_t)from * d; i < (size_t)to * d; ++i) top = std::max(top, std::fabs(a[i]));
    tops[me] = top;
#pragma omp barrier
    top = *std::max_element(tops.begin(), tops.end());
    if (me == 0) largest = top;
    const float scale = top > 0 ? 1 / top : 1;
    double beta = 0;
    for (int k = 0; k < steps; ++k) {
      float* result = results.data() + (size_t)(k % 2) * parts * d;
      apply(a, x.data(), result + (squared ? (size_t)me * d : 0), d, from, to, scale, squared);
#pragma omp barrier
      std::copy_n(result, d, y.data());
      for (int part = 1; part < parts; ++part)
        for (int i = 0; i < d; ++i) y[i] += result[(size_t)part * d + i];
      const float alpha = skew ? 0 : inner_product(x.data(), y.data(), d), back = skew ? beta : -beta;
#pragma omp simd
      for (int i = 0; i < d; ++i) y[i] += back * previous[i] - alpha * x[i];
      beta = std::sqrt(inner_product(y.data(), y.data(), d));
      if (me == 0) {
        diagonal[k] = alpha;
        off[k] = beta;
      }
      const float unit = 1 / std::max(beta, 1e-30);
      for (int i = 0; i < d; ++i) {
        previous[i] = x[i];
        x[i] = y[i] * unit;
      }
    }
  }
  return largest;
}

}  // extern "C"
