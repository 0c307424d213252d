// Few rows times the inputs above their thresholds, in layouts where all weights of an input lie side by side. In panels,
// an input that is left out saves a line of floats or half a line of halves here and there, which memory fetches anyway:
// half of the inputs left out as zeros took 0.9 to 1.3 of the time of all (SmolLM2's layers), here 0.52 to 0.55.
#pragma once
#include <math.h>

#include "step.h"

namespace {

// So many inputs are added before sums are stored: they stay in the L1 cache, but reading and writing them takes time too
// (halves, 576 to 1536, half of the inputs: 73 us with four, 65 us with eight).
constexpr int kInputsAtOnce = 8;
constexpr int kRowsOfInputs = kWideTiles ? 4 : 2;  // that use a weight once it is in a register
// How far ahead weights are fetched: the hardware begins anew with each input, and some rows are only a few lines long
// (1536 to 576: 88 us with 256 bytes, 80 us with 512, 93 us with 1024).
constexpr int64_t kInputsAhead = 512;  // bytes

// The thresholds of the inputs.
DG_INLINE const float* thresholds_of(const Linear& linear, const float* bias) {
  return bias + static_cast<int64_t>(linear.width) * (in_bytes(linear) ? 2 : 1);
}

// Only this is left out, so that a NaN stays.
DG_INLINE bool is_below(float x, float threshold) { return fabsf(x) <= threshold; }

// Lets a step read its inputs with zeros for those that are not above their threshold, written to `kept`, and lists for
// few rows which inputs are above it in any of them.
void take_above(Step& s, float* kept, int64_t stride) {
  const float* threshold = thresholds_of(*s.linear, s.bias);
  const int inputs = s.linear->inputs;
  for (int row = 0; row < s.rows; ++row) {
    const float* x = s.in + row * s.in_stride;
    for (int k = 0; k < inputs; ++k) kept[row * stride + k] = is_below(x[k], threshold[k]) ? 0.0f : x[k];
  }
  s.in = kept, s.in_stride = stride, s.skip = false;
  if (s.rows > kTileRows) return;
  int count = 0;
  for (int k = 0; k < inputs; ++k) {
    bool any = false;
    for (int row = 0; row < s.rows; ++row) any |= kept[row * stride + k] != 0.0f;
    s.nonzero.index[count] = static_cast<uint16_t>(k);
    count += any;
  }
  *s.nonzero.count = count;
}

// c[m][n] += sum of value[m][k] * weight[k][n], for the outputs of some panels from n on.
template <int kRows, int kInputs, int kPanels, class Weight>
DG_INLINE void add_inputs_at(int64_t n, const float (&value)[kRows][kInputs], const Weight* const* weight,
                             const Weight* const* soon, float* const* c) {
  constexpr int64_t kBytes = kPanels * kPanel * sizeof(Weight), kLine = 64;
  Vec acc[kPanels][kRows][kVectors16];
  DG_UNROLL for (int p = 0; p < kPanels; ++p)
    DG_UNROLL for (int m = 0; m < kRows; ++m) load_row(c[m] + n + p * kPanel, acc[p][m]);
  DG_UNROLL for (int k = 0; k < kInputs; ++k) {
    const char* fetched = reinterpret_cast<const char*>(soon[k] + n);
    DG_UNROLL for (int64_t line = 0; line < kBytes; line += kLine) __builtin_prefetch(fetched + line);
    DG_UNROLL for (int p = 0; p < kPanels; ++p) {
      Vec row[kVectors16];
      load_row(weight[k] + n + p * kPanel, row);
      DG_UNROLL for (int m = 0; m < kRows; ++m)
        DG_UNROLL for (int v = 0; v < kVectors16; ++v) acc[p][m][v] += row[v] * value[m][k];
    }
  }
  DG_UNROLL for (int p = 0; p < kPanels; ++p)
    DG_UNROLL for (int m = 0; m < kRows; ++m)
      DG_UNROLL for (int v = 0; v < kVectors16; ++v) store(c[m] + n + p * kPanel + v * kLanes, acc[p][m][v]);
}

// The same for the outputs begin..end-1. The weights that are needed next, at then[k], are fetched ahead.
template <int kRows, int kInputs, class Weight>
DG_NOINLINE void add_inputs(const float (&value)[kRows][kInputs], const Weight* const* weight, const Weight* const* then,
                            int64_t begin, int64_t end, float* const* c) {
  constexpr int kPanels = !kWideTiles ? 1 : sizeof(Weight) == 1 ? 4 : 2;  // a cache line or more
  constexpr int64_t kStep = kPanels * kPanel, kAhead = kInputsAhead / static_cast<int64_t>(sizeof(Weight));
  const Weight* soon[kInputs];
  DG_UNROLL for (int k = 0; k < kInputs; ++k) soon[k] = weight[k] + kAhead;
  const int64_t turn = begin + most<int64_t>(0, end - begin - kAhead) / kStep * kStep;
  int64_t n = begin;
  for (; n < turn; n += kStep) add_inputs_at<kRows, kInputs, kPanels>(n, value, weight, soon, c);
  DG_UNROLL for (int k = 0; k < kInputs; ++k) soon[k] = then[k] + begin - turn;
  for (; n + kStep <= end; n += kStep) add_inputs_at<kRows, kInputs, kPanels>(n, value, weight, soon, c);
  for (; n < end; n += kPanel) add_inputs_at<kRows, kInputs, 1>(n, value, weight, soon, c);
}

// The listed inputs from `first` on, as many as say so, of some rows from `row` on.
template <int kRows, int kInputs, class Weight>
DG_INLINE void add_listed(const Step& s, int first, int row, const Weight* const* weight, const Weight* const* then,
                          int64_t begin, int64_t end) {
  float value[kRows][kInputs], *c[kRows];
  DG_UNROLL for (int m = 0; m < kRows; ++m) {
    const float* in = s.in + (row + m) * s.in_stride;
    DG_UNROLL for (int k = 0; k < kInputs; ++k) value[m][k] = in[s.nonzero.index[first + k]];
    c[m] = s.out + (row + m) * s.out_stride;
  }
  add_inputs<kRows, kInputs>(value, weight, then, begin, end, c);
}

template <int kInputs, class Weight>
void add_some(const Step& s, int first, int64_t begin, int64_t end) {
  const Weight *weights = reinterpret_cast<const Weight*>(s.weight), *weight[kInputs], *then[kInputs];
  const auto weights_of = [&](int i) {
    return weights + static_cast<int64_t>(s.nonzero.index[least(i, *s.nonzero.count - 1)]) * s.linear->width;
  };
  for (int k = 0; k < kInputs; ++k) weight[k] = weights_of(first + k), then[k] = weights_of(first + kInputs + k);
  int row = 0;
  for (; row + kRowsOfInputs <= s.rows; row += kRowsOfInputs)
    add_listed<kRowsOfInputs, kInputs>(s, first, row, weight, then, begin, end);
  for (; row < s.rows; ++row) add_listed<1, kInputs>(s, first, row, weight, then, begin, end);
}

template <class Weight>
void add_all(const Step& s, int64_t begin, int64_t end) {
  const int count = *s.nonzero.count;
  int i = 0;
  for (; i + kInputsAtOnce <= count; i += kInputsAtOnce) add_some<kInputsAtOnce, Weight>(s, i, begin, end);
  if (count - i >= 4) add_some<4, Weight>(s, i, begin, end), i += 4;
  for (; i < count; ++i) add_some<1, Weight>(s, i, begin, end);
}

// Few rows, for the panels first..until-1: `out` holds what is added to.
void run_inputs(const Step& s, int64_t first, int64_t until) {
  switch (s.linear->layout) {
    case dynamicgate::kHalfInputs: return add_all<Half>(s, first * kPanel, until * kPanel);
    case dynamicgate::kByteInputs: return add_all<Byte>(s, first * kPanel, until * kPanel);
    default: add_all<float>(s, first * kPanel, until * kPanel);
  }
}

}  // namespace
