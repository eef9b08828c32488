// f = scale h(n) g(c) + shift for every pixel and filter, with c = s / n; and the way back.
//
//   df/ds = scale r(n) g'(c)                        r(n) = h(n) / n
//   df/dn = scale (h'(n) g(c) - r(n) g'(c) c)       summed over the filters
//   df/drho = scale g(c) dh/drho,   df/dk = scale h(n) dg/dk,   df/dscale = h(n) g(c)
//
// Before this text stand the formulas, in three parts: what depends on the filter alone
// (of_filter, computed once per call), on the pixel alone (of_pixel, once per pixel), and the rest.
// FILTER_LINES and PIXEL_LINES fetch the first two for filter f and pixel p, FORMULAS has from
// these and c: value, slope, of_k, ratio, of_norm, of_radius.

struct Filters {
  const float *k, *radius, *scale, *shift;  // a number per filter; scale and shift may not be there
};

static std::vector<float> of_filters(const Filters& given, long channels) {
  std::vector<float> values(FILTER_VALUES * channels);
  for (long f = 0; f < channels; ++f) of_filter(given.k ? given.k[f] : 0.0f, given.radius[f], values.data() + f, channels);
  return values;
}

static void of_block(const float* norm, const Filters& given, long count, float* pixel, float* over) {
  for (long p = 0; p < count; ++p) over[p] = inverse(norm[p]);
  for (long p = 0; p < count; ++p) of_pixel(norm[p], given.radius[0], pixel + p, BLOCK);
}

static inline float bounded(float x) { return x > BOUND ? BOUND : (x < -BOUND ? -BOUND : x); }

static inline float cosine(float s, float over_n) {
  const float c = s * over_n;
  return CLAMPS ? (c > 1.0f ? 1.0f : (c < -1.0f ? -1.0f : c)) : c;
}

static inline float answer(float s, float n, float value, float ratio) {
  if (IS_COSINE) return HAS_BOUND ? bounded(s * ratio) : s * ratio;
  if (IS_CONSTANT) return value * ALPHA;
  return value * (HAS_BOUND ? bounded(ratio * n) : ratio * n);
}

extern "C" {

// products: s = w^T x.
void forward(const float* products, const float* norm, Filters given, float* out, Sizes sizes, int threads) {
  const long channels = sizes.channels;
  const std::vector<float> values = of_filters(given, channels);
  for_blocks(sizes, threads, [&] {
    return [&, memory = std::vector<float>((PIXEL_VALUES + 1) * BLOCK)](long image, long first, long count) mutable {
      const float* __restrict__ filter = values.data();
      const float* __restrict__ n_of = norm + image * sizes.pixels + first;
      float* __restrict__ over = memory.data();
      float* __restrict__ pixel = memory.data() + BLOCK;
      of_block(n_of, given, count, pixel, over);
      const long start = sizes.start(image, first);
      if (sizes.rows) {
        for (long p = 0; p < count; ++p) {
          const float* __restrict__ in = products + start + p * channels;
          float* __restrict__ to = out + start + p * channels;
          const float n = n_of[p], over_n = over[p];
          PIXEL_LINES
#pragma omp simd
          for (long f = 0; f < channels; ++f) {
            const float s = in[f], c = cosine(s, over_n);
            FILTER_LINES
            FORMULAS
            to[f] = answer(s, n, value, ratio);
          }
          if (given.scale)
            for (long f = 0; f < channels; ++f) to[f] *= given.scale[f];
          if (given.shift)
            for (long f = 0; f < channels; ++f) to[f] += given.shift[f];
        }
        return;
      }
      for (long f = 0; f < channels; ++f) {
        const float* __restrict__ in = products + start + f * sizes.pixels;
        float* __restrict__ to = out + start + f * sizes.pixels;
        const float scale = given.scale ? given.scale[f] : 1.0f, shift = given.shift ? given.shift[f] : 0.0f;
        FILTER_LINES
#pragma omp simd
        for (long p = 0; p < count; ++p) {
          const float n = n_of[p], s = in[p], c = cosine(s, over[p]);
          PIXEL_LINES
          FORMULAS
          to[p] = answer(s, n, value, ratio) * scale + shift;
        }
      }
    };
  });
}

}  // extern "C"

// Sums over the pixels: the gradients in shift, scale, radius and k.
enum Sum { SHIFT, SCALE, RADIUS, K, SUMS };

template <bool NEED_K>
static void backward_pass(const float* grad, const float* products, const float* norm, Filters given, float* grad_products,
                          float* grad_norm, double* sums, const bool* need, Sizes sizes, int threads) {
  const long channels = sizes.channels;
  const std::vector<float> values = of_filters(given, channels);
  std::vector<double> shares(threads * SUMS * channels);  // of each thread, added up in their order
  for_blocks(sizes, threads, [&] {
    double* share = shares.data() + omp_get_thread_num() * SUMS * channels;
    std::vector<float> memory((PIXEL_VALUES + 1) * BLOCK), row(channels), small(SUMS * channels);
    return [&, share, memory, row, small](long image, long first, long count) mutable {
      const float* __restrict__ filter = values.data();
      const float* __restrict__ n_of = norm + image * sizes.pixels + first;
      float* __restrict__ through = grad_norm + image * sizes.pixels + first;
      const float* __restrict__ over = memory.data();
      const float* __restrict__ pixel = memory.data() + BLOCK;
      of_block(n_of, given, count, memory.data() + BLOCK, memory.data());
      const long start = sizes.start(image, first);
      if (!sizes.rows) {
        std::fill(through, through + count, 0.0f);
        for (long f = 0; f < channels; ++f) {
          const float* in = products + start + f * sizes.pixels;
          float* to = grad_products + start + f * sizes.pixels;  // which may be the memory of in
          const float* __restrict__ come = grad + start + f * sizes.pixels;
          const float scale = given.scale ? given.scale[f] : 1.0f;
          FILTER_LINES
          float sum_radius = 0, sum_k = 0;
          if (need[SHIFT] || need[SCALE]) {
            float sum_shift = 0, sum_scale = 0;
#pragma omp simd reduction(+ : sum_shift, sum_scale)
            for (long p = 0; p < count; ++p) {
              const float n = n_of[p], s = in[p], c = cosine(s, over[p]);
              PIXEL_LINES
              FORMULAS
              sum_shift += come[p];
              sum_scale += come[p] * answer(s, n, value, ratio);
            }
            share[SHIFT * channels + f] += sum_shift;
            share[SCALE * channels + f] += sum_scale;
          }
#pragma omp simd reduction(+ : sum_radius, sum_k)
          for (long p = 0; p < count; ++p) {
            const float n = n_of[p], c = cosine(in[p], over[p]), go = come[p] * scale;
            PIXEL_LINES
            FORMULAS
            const float grad_s = go * slope * ratio, t = go * value;
            to[p] = grad_s;
            through[p] += t * of_norm - grad_s * c;
            if (HAS_RADIUS) sum_radius += t * of_radius;
            if (NEED_K) sum_k += go * of_k * (ratio * n);
          }
          share[RADIUS * channels + f] += sum_radius;
          share[K * channels + f] += sum_k;
        }
        return;
      }
      float* __restrict__ sum_radius = small.data() + RADIUS * channels;
      float* __restrict__ sum_k = small.data() + K * channels;
      for (long p = 0; p < count; ++p) {
        const float* in = products + start + p * channels;
        float* to = grad_products + start + p * channels;
        const float* __restrict__ come = grad + start + p * channels;
        const float n = n_of[p], over_n = over[p];
        PIXEL_LINES
        if (need[SHIFT])
          for (long f = 0; f < channels; ++f) small[SHIFT * channels + f] += come[f];
        if (need[SCALE])
          for (long f = 0; f < channels; ++f) {
            const float s = in[f], c = cosine(s, over_n);
            FILTER_LINES
            FORMULAS
            small[SCALE * channels + f] += come[f] * answer(s, n, value, ratio);
          }
        if (given.scale) {
          for (long f = 0; f < channels; ++f) row[f] = come[f] * given.scale[f];
          come = row.data();
        }
        float sum_norm = 0;
#pragma omp simd reduction(+ : sum_norm)
        for (long f = 0; f < channels; ++f) {
          const float c = cosine(in[f], over_n);
          FILTER_LINES
          FORMULAS
          const float grad_s = come[f] * slope * ratio, t = come[f] * value;
          to[f] = grad_s;
          sum_norm += t * of_norm - grad_s * c;
          if (HAS_RADIUS) sum_radius[f] += t * of_radius;
          if (NEED_K) sum_k[f] += come[f] * of_k * (ratio * n);
        }
        through[p] = sum_norm;
      }
      // A block at a time in double: a sum over many pixels keeps its digits.
      for (int which = 0; which < SUMS; ++which)
        if (need[which])
          for (long i = which * channels; i < (which + 1) * channels; ++i) share[i] += small[i], small[i] = 0;
    };
  });
  for (int thread = 0; thread < threads; ++thread)
    for (long i = 0; i < SUMS * channels; ++i) sums[i] += shares[thread * SUMS * channels + i];
}

extern "C" {

// The gradient in the products may take their own place. sums: (SUMS, channels), zeros.
void backward(const float* grad, const float* products, const float* norm, Filters given, float* grad_products,
              float* grad_norm, double* sums, int needed, Sizes sizes, int threads) {
  bool need[SUMS];
  for (int which = 0; which < SUMS; ++which) need[which] = needed >> which & 1;
  (need[K] ? backward_pass<true> : backward_pass<false>)(grad, products, norm, given, grad_products, grad_norm,
                                                               sums, need, sizes, threads);
}

}  // extern "C"
