// Activations over contiguous floats, written so that the compiler vectorises them; errors stay near 1e-7.
#pragma once
#include "vector.h"

namespace {

// e^x by splitting x into n ln 2 + r and a polynomial of degree 6 in r (Taylor: |r| <= 0.347 leaves 1.2e-7 relative).
DG_INLINE float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 89.0f ? 89.0f : x;  // e^89 is infinite, so that sigmoid(-inf) is 0 and silu(-inf) NaN, as in torch
  const float shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: the sum rounds to an integer in its low bits
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
  const float p = 1.0f + r * (1.0f + r * (0.5f + r * (1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720))))));
  uint32_t bits;
  memcpy(&bits, &shifted, 4);
  bits = (bits << 23) + 0x3f800000u;  // 2^n
  float scale;
  memcpy(&scale, &bits, 4);
  return p * scale;
}

DG_INLINE float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

// erf by formula 7.1.26 of Abramowitz and Stegun: absolute error below 1.5e-7.
DG_INLINE float error_function(float x) {
  const float size = x < 0 ? -x : x;
  const float t = 1.0f / (1.0f + 0.3275911f * size);
  const float series =
      t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  const float value = 1.0f - series * exponential(-size * size);
  return x < 0 ? -value : value;
}

DG_INLINE float relu(float x) { return x < 0 ? 0.0f : x; }  // NaN stays NaN
DG_INLINE float silu(float x) { return x * sigmoid(x); }
DG_INLINE float tanh_(float x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }
DG_INLINE float gelu(float x) { return 0.5f * x * (1.0f + error_function(x * 0.707106781f)); }
DG_INLINE float gelu_tanh(float x) { return x * sigmoid(1.59576912f * (x + 0.044715f * x * x * x)); }
DG_INLINE float quick_gelu(float x) { return x * sigmoid(1.702f * x); }
DG_INLINE float relu2(float x) { return relu(x) * relu(x); }

template <float (*kFunction)(float)>
void each(float* x, int64_t count, float factor) {
  for (int64_t i = 0; i < count; ++i) x[i] = kFunction(x[i]) * factor;
}

void activate(int32_t activation, float* x, int64_t count, float factor) {
  switch (activation) {
    case dynamicgate::kRelu: return each<relu>(x, count, factor);
    case dynamicgate::kGelu: return each<gelu>(x, count, factor);
    case dynamicgate::kGeluTanh: return each<gelu_tanh>(x, count, factor);
    case dynamicgate::kSilu: return each<silu>(x, count, factor);
    case dynamicgate::kTanh: return each<tanh_>(x, count, factor);
    case dynamicgate::kQuickGelu: return each<quick_gelu>(x, count, factor);
    case dynamicgate::kRelu2: return each<relu2>(x, count, factor);
    default:
      if (factor != 1.0f)
        for (int64_t i = 0; i < count; ++i) x[i] *= factor;
  }
}

}  // namespace
