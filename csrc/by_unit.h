// Few rows times the units whose factor is above its threshold, in layouts where all weights of a unit lie side by side: of
// SwiGLU the projection that the activated one multiplies.
#pragma once
#include "by_input.h"

namespace {

// So many units are summed at once, each from its own part of the list (two, 0.61 of 1536 units of 576 halves: 102 us,
// eight 81 us; floats 171 and 153 us). For one token, 0.61 of the units take 95 us in halves and 170 us in floats, and by
// input 0.78 of the inputs 100 us and 190 us. It is not less because the hardware fetches ahead into units that are closed;
// other orders of the lines of a unit take longer.
constexpr int kUnitsAtOnce = 8 / kVectors16;
// Of several rows fewer units, and so many rows use a weight once it is in a register (both projections for eight rows, in
// halves: 1.33 of the time of inputs alone with two rows and eight units, 1.04 with these).
constexpr int kUnitsOfRows = 4 / kVectors16, kRowsOfUnits = kWideTiles ? 4 : 2;

// The thresholds of the factors that the units are multiplied by.
DG_INLINE const float* factor_thresholds_of(const Linear& linear, const float* bias) {
  return thresholds_of(linear, bias) + linear.inputs;
}

// Makes zeros of the factors that are not above their threshold, and lists for few rows which are above it in any of them.
void take_factors_above(Step& value, float* factor, int64_t stride, int* unit) {
  const float* threshold = factor_thresholds_of(*value.linear, value.bias);
  const int units = value.linear->units;
  for (int row = 0; row < value.rows; ++row)
    for (int n = 0; n < units; ++n)
      factor[row * stride + n] = is_below(factor[row * stride + n], threshold[n]) ? 0.0f : factor[row * stride + n];
  if (value.rows > kTileRows) return;
  const auto list = [&](int rows) {
    int count = 0;
    for (int n = 0; n < units; ++n) {
      bool any = false;
      for (int row = 0; row < rows; ++row) any |= factor[row * stride + n] != 0.0f;
      unit[count] = n;
      count += any;
    }
    return count;
  };
  value.listed = unit, value.listed_count = value.rows == 1 ? list(1) : list(value.rows);  // one by one, without a loop
}

// h *= value for the listed units, of which `run_units` gave the sums. All others are zero in every row. Scales and biases
// are added here and not there, where compilers may round once or twice, depending on how many units are summed at once.
void multiply_listed(const Step& value, float* h, int64_t stride) {
  const float *bias = value.bias, *scale = in_bytes(*value.linear) ? bias + value.linear->width : nullptr;
  const auto multiply = [&](auto&& finished) {
    for (int row = 0; row < value.rows; ++row)
      for (int i = 0; i < value.listed_count; ++i) {
        const int unit = value.listed[i];
        h[row * stride + unit] *= finished(value.out[row * value.out_stride + unit], unit);
      }
  };
  if (scale)
    multiply([&](float sum, int unit) { return sum * scale[unit] + bias[unit]; });
  else
    multiply([&](float sum, int unit) { return sum + bias[unit]; });
}

// result[m][n] = in[m] . weight[n], over whole panels of inputs. The weights that are needed next, at then[n], are fetched
// ahead.
template <int kRows, int kUnits, class Weight>
DG_NOINLINE void unit_dots(const float* const* in, const Weight* const* weight, const Weight* const* then, int64_t depth,
                           float (*result)[kUnits]) {
  Vec acc[kRows][kUnits][kVectors16] = {};
  for (int64_t k = 0; k < depth; k += kPanel) {
    Vec x[kRows][kVectors16];
    DG_UNROLL for (int m = 0; m < kRows; ++m) load_row(in[m] + k, x[m]);
    DG_UNROLL for (int n = 0; n < kUnits; ++n) {
      __builtin_prefetch(then[n] + k);
      Vec row[kVectors16];
      load_row(weight[n] + k, row);
      DG_UNROLL for (int m = 0; m < kRows; ++m)
        DG_UNROLL for (int v = 0; v < kVectors16; ++v) acc[m][n][v] += row[v] * x[m][v];
    }
  }
  DG_UNROLL for (int m = 0; m < kRows; ++m)
    DG_UNROLL for (int n = 0; n < kUnits; ++n) {
      DG_UNROLL for (int v = 1; v < kVectors16; ++v) acc[m][n][0] += acc[m][n][v];
      result[m][n] = sum(acc[m][n][0]);
    }
}

template <int kRows, int kUnits, class Weight>
DG_INLINE void dots_of_rows(const Step& s, int row, const int* unit, const Weight* const* weight, const Weight* const* then) {
  const float* in[kRows];
  float result[kRows][kUnits];
  DG_UNROLL for (int m = 0; m < kRows; ++m) in[m] = s.in + (row + m) * s.in_stride;
  unit_dots<kRows, kUnits>(in, weight, then, unit_weights(*s.linear), result);
  DG_UNROLL for (int m = 0; m < kRows; ++m)
    DG_UNROLL for (int n = 0; n < kUnits; ++n) s.out[(row + m) * s.out_stride + unit[n]] = result[m][n];
}

// The units at places `first`, `first` + `part` and so on of the list, and after them those at `next` and so on, of which
// `last` is the last one.
template <int kUnits, class Weight>
void some_units(const Step& s, int first, int part, int next, int next_part, int last) {
  const Weight *weights = reinterpret_cast<const Weight*>(s.weight), *weight[kUnits], *then[kUnits];
  const int64_t depth = unit_weights(*s.linear);
  int unit[kUnits];
  for (int n = 0; n < kUnits; ++n) {
    unit[n] = s.listed[first + n * part];
    weight[n] = weights + unit[n] * depth, then[n] = weights + s.listed[least(next + n * next_part, last)] * depth;
  }
  int row = 0;
  if constexpr (kUnits <= kUnitsOfRows) {
    for (; row + kRowsOfUnits <= s.rows; row += kRowsOfUnits) dots_of_rows<kRowsOfUnits, kUnits>(s, row, unit, weight, then);
    for (; row + 2 <= s.rows; row += 2) dots_of_rows<2, kUnits>(s, row, unit, weight, then);
  }
  for (; row < s.rows; ++row) dots_of_rows<1, kUnits>(s, row, unit, weight, then);
}

// The units from place `first` of the list to the one before `until`.
template <int kUnits, class Weight>
void all_units(const Step& s, int first, int until) {
  const int last = until - 1, part = (until - first) / kUnits, done = first + part * kUnits;
  for (int i = first; i < first + part; ++i) {
    const bool ends = i + 1 == first + part;
    some_units<kUnits, Weight>(s, i, part, ends ? done : i + 1, ends ? 1 : part, last);
  }
  for (int i = done; i < until; ++i) some_units<1, Weight>(s, i, 1, i + 1, 1, last);
}

template <class Weight>
void units_of(const Step& s, int first, int until) {
  s.rows == 1 ? all_units<kUnitsAtOnce, Weight>(s, first, until) : all_units<kUnitsOfRows, Weight>(s, first, until);
}

// Few rows, for the listed units of the panels begin..end-1: sums, without biases and scales.
void run_units(const Step& s, int begin, int end) {
  int first = 0, until = s.listed_count;
  while (first < until && s.listed[first] < begin * kPanel) ++first;
  while (until > first && s.listed[until - 1] >= end * kPanel) --until;
  if (first == until) return;
  switch (s.linear->layout) {
    case dynamicgate::kHalfUnits: return units_of<Half>(s, first, until);
    case dynamicgate::kByteUnits: return units_of<Byte>(s, first, until);
    default: units_of<float>(s, first, until);
  }
}

}  // namespace
