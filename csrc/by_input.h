// Few rows times the inputs above their thresholds, in layouts where all weights of an input lie side by side. In panels,
// an input that is left out saves a line of floats or half a line of halves here and there, which memory fetches anyway:
// half of the inputs left out as zeros took 0.9 to 1.3 of the time of all (SmolLM2's layers), here 0.52 to 0.55.
#pragma once
#include <math.h>

#include "step.h"

namespace {

// So many inputs are added before sums are stored, each from its own part of the list: what one part reads lies further
// on in memory with every step, so that the hardware helps (half of the inputs, in halves, 576 to 1536 and 1536 to 576: 54
// and 71 us with eight neighbours, 49 and 57 us with eight parts, 44 and 50 us with sixteen).
constexpr int kInputsAtOnce = 16;
constexpr int kRowsOfInputs = kWideTiles ? 4 : 2;  // that use a weight once it is in a register
constexpr int64_t kInputsAhead = 512;  // bytes; beyond the end of a row, those of the next one of its part are fetched

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
    for (int64_t k = inputs; k < unit_weights(*s.linear); ++k) kept[row * stride + k] = 0.0f;  // units read whole panels
  }
  s.in = kept, s.in_stride = stride, s.skip = false;
  if (s.rows > kTileRows || in_units(*s.linear)) return;
  const auto list = [&](int rows) {
    int count = 0;
    for (int k = 0; k < inputs; ++k) {
      bool any = false;
      for (int row = 0; row < rows; ++row) any |= kept[row * stride + k] != 0.0f;
      s.nonzero.index[count] = static_cast<uint16_t>(k);
      count += any;
    }
    *s.nonzero.count = count;
  };
  s.rows == 1 ? list(1) : list(s.rows);  // one by one, without a loop over rows
}

// c[m][n] += sum of value[m][k] * weight[k][n], for the outputs of some panels from n on. What lies at soon[k][n + ahead]
// is fetched.
template <int kRows, int kInputs, int kPanels, class Weight>
DG_INLINE void add_inputs_at(int64_t n, const float (&value)[kRows][kInputs], const Weight* const* weight,
                             const Weight* const* soon, int64_t ahead, float* const* c) {
  constexpr int64_t kBytes = kPanels * kPanel * sizeof(Weight), kLine = 64;
  Vec acc[kPanels][kRows][kVectors16];
  DG_UNROLL for (int p = 0; p < kPanels; ++p)
    DG_UNROLL for (int m = 0; m < kRows; ++m) load_row(c[m] + n + p * kPanel, acc[p][m]);
  DG_UNROLL for (int k = 0; k < kInputs; ++k) {
    const char* fetched = reinterpret_cast<const char*>(soon[k] + n + ahead);
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
  const int64_t turn = begin + most<int64_t>(0, end - begin - kAhead) / kStep * kStep;
  int64_t n = begin;
  for (; n < turn; n += kStep) add_inputs_at<kRows, kInputs, kPanels>(n, value, weight, weight, kAhead, c);
  for (; n + kStep <= end; n += kStep) add_inputs_at<kRows, kInputs, kPanels>(n, value, weight, then, begin - turn, c);
  for (; n < end; n += kPanel) add_inputs_at<kRows, kInputs, 1>(n, value, weight, then, begin - turn, c);
}

// For some rows from `row` on; input[k]: which ones are added.
template <int kRows, int kInputs, class Weight>
DG_INLINE void add_to_rows(const Step& s, int row, const int* input, const Weight* const* weight, const Weight* const* then,
                           int64_t begin, int64_t end) {
  float value[kRows][kInputs], *c[kRows];
  DG_UNROLL for (int m = 0; m < kRows; ++m) {
    const float* in = s.in + (row + m) * s.in_stride;
    DG_UNROLL for (int k = 0; k < kInputs; ++k) value[m][k] = in[input[k]];
    c[m] = s.out + (row + m) * s.out_stride;
  }
  add_inputs<kRows, kInputs>(value, weight, then, begin, end, c);
}

// The inputs at places `first`, `first` + `part` and so on of the list, and after them those at `next` and so on.
template <int kInputs, class Weight>
void add_some(const Step& s, int first, int part, int next, int next_part, int64_t begin, int64_t end) {
  const int last = *s.nonzero.count - 1;
  const Weight *weights = reinterpret_cast<const Weight*>(s.weight), *weight[kInputs], *then[kInputs];
  const auto weights_of = [&](int input) { return weights + static_cast<int64_t>(input) * s.linear->width; };
  int input[kInputs];
  for (int k = 0; k < kInputs; ++k) {
    input[k] = s.nonzero.index[first + k * part];
    weight[k] = weights_of(input[k]), then[k] = weights_of(s.nonzero.index[least(next + k * next_part, last)]);
  }
  int row = 0;
  for (; row + kRowsOfInputs <= s.rows; row += kRowsOfInputs)
    add_to_rows<kRowsOfInputs, kInputs>(s, row, input, weight, then, begin, end);
  for (; row < s.rows; ++row) add_to_rows<1, kInputs>(s, row, input, weight, then, begin, end);
}

template <class Weight>
void add_all(const Step& s, int64_t begin, int64_t end) {
  const int count = *s.nonzero.count, part = count / kInputsAtOnce;
  int done = part * kInputsAtOnce;
  for (int i = 0; i < part; ++i) {
    const bool last = i + 1 == part;
    add_some<kInputsAtOnce, Weight>(s, i, part, last ? done : i + 1, last ? 1 : part, begin, end);
  }
  if (done + 8 <= count) add_some<8, Weight>(s, done, 1, done + 8, 1, begin, end), done += 8;
  if (done + 4 <= count) add_some<4, Weight>(s, done, 1, done + 4, 1, begin, end), done += 4;
  for (; done < count; ++done) add_some<1, Weight>(s, done, 1, done + 1, 1, begin, end);
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
