// Steps of Lanczos with one pass over the matrix each: what they cost is reading it.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

// y <- A x for a matrix by rows, or A^T A x; entries are multiplied by `scale`. `parts` has d numbers for each thread.
static void apply(const float* a, const float* x, float* y, float* parts, int d, float scale, bool squared,
                  int threads) {
  std::fill(parts, parts + (squared ? (size_t)threads * d : 0), 0.0f);
#pragma omp parallel num_threads(threads)
  {
    float* own = parts + (size_t)omp_get_thread_num() * d;
#pragma omp for schedule(static)
    for (int i = 0; i < d; ++i) {
      const float* row = a + (size_t)i * d;
      float inner = 0;
#pragma omp simd reduction(+ : inner)
      for (int j = 0; j < d; ++j) inner += row[j] * x[j];
      y[i] = inner *= scale;
      if (!squared) continue;
      inner *= scale;
#pragma omp simd
      for (int j = 0; j < d; ++j) own[j] += row[j] * inner;
    }
  }
  if (!squared) return;
  std::fill(y, y + d, 0.0f);
  for (int t = 0; t < threads; ++t)
    for (int j = 0; j < d; ++j) y[j] += parts[(size_t)t * d + j];
}

static double inner_product(const float* a, const float* b, int d) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < d; ++i) sum += (double)a[i] * b[i];
  return sum;
}

extern "C" {

// Diagonal and off-diagonal of T, for a symmetric A or a skew one (sign 1: the diagonal is 0), or for A^T A. `x` is a
// unit vector, and is used up. Gives the largest entry of A, in the unit (or its square) of which T is; 0 for A = 0.
float lanczos(const float* a, float* x, double* diagonal, double* off, int d, int steps, bool squared, bool skew,
              int threads) {
  float largest = 0;
#pragma omp parallel for simd reduction(max : largest) num_threads(threads)
  for (size_t i = 0; i < (size_t)d * d; ++i) largest = std::max(largest, std::fabs(a[i]));
  const float scale = largest > 0 ? 1 / largest : 1;
  std::vector<float> previous(d, 0.0f), y(d), parts((size_t)threads * d);
  double beta = 0;
  for (int k = 0; k < steps; ++k) {
    apply(a, x, y.data(), parts.data(), d, scale, squared, threads);
    const float alpha = skew ? 0 : inner_product(x, y.data(), d), back = skew ? beta : -beta;
#pragma omp simd
    for (int i = 0; i < d; ++i) y[i] += back * previous[i] - alpha * x[i];
    beta = std::sqrt(inner_product(y.data(), y.data(), d));
    diagonal[k] = alpha;
    off[k] = beta;
    const float unit = 1 / std::max(beta, 1e-30);
    for (int i = 0; i < d; ++i) {
      previous[i] = x[i];
      x[i] = y[i] * unit;
    }
  }
  return largest;
}

}  // extern "C"
