// Functions of one float that a compiler turns into vector instructions: without branches, tables
// or calls. Errors are a few units in the last place; NaN stays NaN. Polynomials from Cephes.
#pragma once
#include <cmath>
#include <cstring>

static inline float exp_of(float x) {
  x = x > 88.0f ? 88.0f : x;
  x = x < -87.0f ? -87.0f : x;
  const float whole = __builtin_rintf(x * 1.44269504088896341f);
  // ln 2 in two parts, the first of them exact in few bits.
  const float r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int exponent = (static_cast<int>(whole) + 127) << 23;
  float power;
  std::memcpy(&power, &exponent, sizeof power);
  return p * power;
}

static inline float tanh_of(float x) {
  const float a = __builtin_fabsf(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float near = p * z * x + x;
  const float far = 1.0f - 2.0f / (exp_of(2.0f * (a > 10.0f ? 10.0f : a)) + 1.0f);
  return a < 0.625f ? near : __builtin_copysignf(far, x);
}

static inline float sigmoid_of(float x) { return 1.0f / (1.0f + exp_of(-x)); }

static inline float asin_of(float x) {
  const float a = __builtin_fabsf(x);
  const bool far = a > 0.5f;  // there by way of the half angle
  const float z = far ? 0.5f * (1.0f - a) : a * a;
  const float y = far ? __builtin_sqrtf(z) : a;
  float p = 4.2163199048e-2f;
  p = p * z + 2.4181311049e-2f;
  p = p * z + 4.5470025998e-2f;
  p = p * z + 7.4953002686e-2f;
  p = p * z + 1.6666752422e-1f;
  const float s = p * z * y + y;
  return __builtin_copysignf(far ? 1.57079632679489661923f - 2.0f * s : s, x);
}
