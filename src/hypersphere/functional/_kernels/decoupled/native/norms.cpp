// Patch norms: squares summed over the channels, then over each window; and the way back.
#include <cmath>

#include "blocks.h"

struct Windows {
  long height, width, out_height, out_width;
  long size[2], step[2], pad[2], gap[2];
};

// The outputs [first, last) of a row of which a tap falls inside the image, and where it falls for output 0.
struct Tap {
  long first, last, offset;
};

static std::vector<Tap> taps(const Windows& w) {
  std::vector<Tap> found;
  for (long k = 0; k < w.size[1]; ++k) {
    const long offset = k * w.gap[1] - w.pad[1], step = w.step[1];
    const long first = offset >= 0 ? 0 : (-offset + step - 1) / step;
    const long last = offset >= w.width ? 0 : std::min(w.out_width, (w.width - 1 - offset) / step + 1);
    found.push_back({first, last, offset});
  }
  return found;
}

// Calls visit(output row, input row, tap) for every tap of every row of windows.
template <typename Visit>
static inline void for_taps(const Windows& w, const std::vector<Tap>& row, Visit visit) {
  for (long oy = 0; oy < w.out_height; ++oy)
    for (long k = 0; k < w.size[0]; ++k) {
      const long iy = oy * w.step[0] + k * w.gap[0] - w.pad[0];
      if (iy < 0 || iy >= w.height) continue;
      for (const Tap& tap : row) visit(oy, iy, tap);
    }
}

static void spread_image(const float* grad, const float* norm, float* to, const Windows& w, const std::vector<Tap>& row,
                         long image, float* each) {
  const long start = image * w.out_height * w.out_width;
  for (long i = 0; i < w.out_height * w.out_width; ++i) each[i] = grad[start + i] * inverse(norm[start + i]);
  std::fill(to, to + w.height * w.width, 0.0f);
  for_taps(w, row, [&](long oy, long iy, const Tap& tap) {
    float* __restrict__ out = to + iy * w.width + tap.offset;
    const float* __restrict__ in = each + oy * w.out_width;
    if (w.step[1] == 1)
      for (long ox = tap.first; ox < tap.last; ++ox) out[ox] += in[ox];
    else
      for (long ox = tap.first; ox < tap.last; ++ox) out[ox * w.step[1]] += in[ox];
  });
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
  const std::vector<Tap> row = taps(w);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long image = 0; image < images; ++image) {
    const float* from = sums + image * w.height * w.width;
    float* to = norm + image * w.out_height * w.out_width;
    std::fill(to, to + w.out_height * w.out_width, 0.0f);
    for_taps(w, row, [&](long oy, long iy, const Tap& tap) {
      const float* __restrict__ in = from + iy * w.width + tap.offset;
      float* __restrict__ out = to + oy * w.out_width;
      if (w.step[1] == 1)
        for (long ox = tap.first; ox < tap.last; ++ox) out[ox] += in[ox];
      else
        for (long ox = tap.first; ox < tap.last; ++ox) out[ox] += in[ox * w.step[1]];
    });
    for (long i = 0; i < w.out_height * w.out_width; ++i) to[i] = __builtin_sqrtf(to[i]);
  }
}

// What each pixel is multiplied with: grad / norm of all windows that it is in. Nothing of zero patches.
void spread(const float* grad, const float* norm, float* pixel, Windows w, long images, int threads) {
  const std::vector<Tap> row = taps(w);
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> each(w.out_height * w.out_width);
#pragma omp for schedule(static)
    for (long image = 0; image < images; ++image)
      spread_image(grad, norm, pixel + image * w.height * w.width, w, row, image, each.data());
  }
}

// Adds to the gradient in x what comes through the norms: x times the same.
void add_through_norms(const float* grad, const float* norm, const float* x, float* grad_x, Windows w, Sizes sizes,
                       int threads) {
  const std::vector<Tap> row = taps(w);
  const long channels = sizes.channels, pixels = sizes.pixels;
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> each(w.out_height * w.out_width), spread_out(pixels);
    float* __restrict__ pixel = spread_out.data();
#pragma omp for schedule(static)
    for (long image = 0; image < sizes.images; ++image) {
      spread_image(grad, norm, pixel, w, row, image, each.data());
      const float* from = x + image * pixels * channels;
      float* to = grad_x + image * pixels * channels;
      if (sizes.rows)
        for (long p = 0; p < pixels; ++p)
#pragma omp simd
          for (long c = 0; c < channels; ++c) to[p * channels + c] += from[p * channels + c] * pixel[p];
      else
        for (long c = 0; c < channels; ++c)
#pragma omp simd
          for (long p = 0; p < pixels; ++p) to[c * pixels + p] += from[c * pixels + p] * pixel[p];
    }
  }
}

// w / |w| of every filter; a zero one counts as infinitely long, so that its direction is 0.
void directions(const float* weight, float* unit, float* lengths, long filters, long size, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long f = 0; f < filters; ++f) {
    const float* from = weight + f * size;
    float* to = unit + f * size;
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (long i = 0; i < size; ++i) total += from[i] * from[i];
    const float length = total <= 0 ? INFINITY : __builtin_sqrtf(total);
    lengths[f] = length;
#pragma omp simd
    for (long i = 0; i < size; ++i) to[i] = from[i] / length;
  }
}

// (g - (g.u) u) / |w|, Eq. 4.17, in the place of g.
void through_directions(float* grad, const float* unit, const float* lengths, long filters, long size, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long f = 0; f < filters; ++f) {
    float* to = grad + f * size;
    const float* u = unit + f * size;
    float inner = 0;
#pragma omp simd reduction(+ : inner)
    for (long i = 0; i < size; ++i) inner += to[i] * u[i];
    const float length = lengths[f];
#pragma omp simd
    for (long i = 0; i < size; ++i) to[i] = (to[i] - inner * u[i]) / length;
  }
}

}  // extern "C"
