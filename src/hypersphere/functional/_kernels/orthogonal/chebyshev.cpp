// The series Y_1 = s Y_0 W, Y_k = Y_{k-2} + 2 s Y_{k-1} W for rows of d numbers. Each thread has rows of its own and goes
// through the whole series without waiting for another.
#include <omp.h>

#include <algorithm>

using Gemm = void (*)(const char*, const char*, const int*, const int*, const int*, const float*, const float*,
                      const int*, const float*, const int*, const float*, float*, const int*);

extern "C" void chebyshev(void* gemm, const float* w, float* terms, float scale, int count, int d, int n, int threads) {
#pragma omp parallel num_threads(threads)
  {
    const int me = omp_get_thread_num(), team = omp_get_num_threads();
    const int first = n * me / team, rows = n * (me + 1) / team - first;
    const size_t step = (size_t)n * d, own = (size_t)rows * d;
    float* term = terms + (size_t)first * d;
    const char plain = 'N';
    for (int k = 1; k < count && rows > 0; ++k) {
      float* next = term + step;
      if (k > 1) std::copy_n(term - step, own, next);
      const float factor = k > 1 ? 2 * scale : scale, keep = k > 1 ? 1 : 0;
      // By columns, as BLAS reads it, all of it is transposed: W^T times the columns Y^T.
      ((Gemm)gemm)(&plain, &plain, &d, &rows, &d, &factor, w, &d, term, &d, &keep, next, &d);
      term = next;
    }
  }
}
