// The layouts that compute one output at a time: rows (unit gates, small gates) and compressed sparse rows (csr).
// They read their input as if it were dense: its closed blocks must hold zeros.
#pragma once
#include "step.h"

namespace {

constexpr int kDotRows = 4, kDotOutputs = 4;
constexpr int kRunPanels = 8;  // no run of units crosses a multiple of this many panels, so that threads can be cut there

DG_INLINE int unit_block(const Step& s, int unit) { return s.out_open.is_open ? unit / s.out_open.block : 0; }

// Units that are open together, in runs of up to four, times the rows that open them, four at a time.
void run_dots(const Step& s, const int* unit, int units, int block) {
  const float *a[kDotRows], *w[kDotOutputs];
  float result[kDotRows][kDotOutputs] = {}, bias[kDotOutputs] = {};
  float* c[kDotRows] = {result[0], result[1], result[2], result[3]};
  for (int n = 0; n < units; ++n) {
    w[n] = s.weight + static_cast<int64_t>(unit[n]) * s.linear->inputs;
    bias[n] = s.bias[unit[n]];
  }
  const int rows = s.out_open.rows_in(block, s.rows);
  for (int first = 0; first < rows; first += kDotRows) {
    const int height = least(kDotRows, rows - first);
    for (int m = 0; m < height; ++m) a[m] = s.in + s.out_open.row(block, first + m) * s.in_stride;
    dots_of<kDotRows, kDotOutputs>(height, units, a, w, s.linear->inputs, c);
    for (int m = 0; m < height; ++m) {
      const int row = s.out_open.row(block, first + m);
      float* out = s.out + row * s.out_stride;
      for (int n = 0; n < kDotOutputs; ++n) result[m][n] += bias[n];  // also those not in use: a loop of constant length is free
      if (s.linear->activation != dynamicgate::kIdentity) activate(s.linear->activation, result[m], kDotOutputs, 1.0f);
      if (s.out_open.factor)
        for (int n = 0; n < units; ++n)
          result[m][n] *= s.out_open.factor[row * s.out_open.blocks + unit_block(s, unit[n])];
      for (int n = 0; n < units; ++n) out[unit[n]] = result[m][n];
    }
  }
}

void run_rows(const Step& s, int begin, int end) {
  int unit[kDotOutputs], waiting = 0, block = 0;
  const auto flush = [&] {
    if (waiting) run_dots(s, unit, waiting, block);
    waiting = 0;
  };
  for (int p = begin; p < end; ++p) {
    if (p % kRunPanels == 0) flush();
    for (int n = s.panels[p] * kPanel; n < least(s.linear->units, (s.panels[p] + 1) * kPanel); ++n) {
      const int of = unit_block(s, n);
      if (!s.out_open.rows_in(of, s.rows)) continue;
      // With a single row, units of different blocks are open for the same rows, so one run may cross blocks.
      if (waiting == kDotOutputs || (waiting && of != block && s.rows > 1)) flush();
      block = of;
      unit[waiting++] = n;
    }
  }
  flush();
}

template <int kRows>
DG_INLINE float sparse_dot(const float* x, const float* value, const uint16_t* index, int count) {
  float sums[kRows] = {};
  int k = 0;
  for (; k + kRows <= count; k += kRows)
    for (int i = 0; i < kRows; ++i) sums[i] += value[k + i] * x[index[k + i]];
  for (; k < count; ++k) sums[0] += value[k] * x[index[k]];
  for (int i = 1; i < kRows; ++i) sums[0] += sums[i];
  return sums[0];
}

// Up to sixteen rows at once, from the transposed copy: each weight multiplies one vector of inputs, or several.
template <int kVectors>
DG_INLINE void sparse_vectors(const float* packed, const float* value, const uint16_t* index, int count, float* out) {
  constexpr int kSets = kVectors > 2 ? 2 : 4;  // of sums: each waits for its last addition
  Vec acc[kSets][kVectors] = {};
  int k = 0;
  for (; k + kSets <= count; k += kSets)
    DG_UNROLL for (int set = 0; set < kSets; ++set)
      DG_UNROLL for (int v = 0; v < kVectors; ++v)
        acc[set][v] += load(packed + index[k + set] * kPanel + v * kLanes) * value[k + set];
  for (; k < count; ++k)
    for (int v = 0; v < kVectors; ++v) acc[0][v] += load(packed + index[k] * kPanel + v * kLanes) * value[k];
  for (int v = 0; v < kVectors; ++v) {
    for (int set = 1; set < kSets; ++set) acc[0][v] += acc[set][v];
    store(out + v * kLanes, acc[0][v]);
  }
}

// Only the vectors that hold one of `height` rows.
DG_INLINE void sparse_tile(int height, const float* packed, const float* value, const uint16_t* index, int count, float* out) {
  switch ((height + kLanes - 1) / kLanes) {
    case 1: return sparse_vectors<1>(packed, value, index, count, out);
    case 2: return sparse_vectors<least(2, kVectors16)>(packed, value, index, count, out);
    case 3: return sparse_vectors<least(3, kVectors16)>(packed, value, index, count, out);
    default: return sparse_vectors<kVectors16>(packed, value, index, count, out);
  }
}

constexpr int kSparseTileRows = 6;  // from this many rows on, a tile of 16, even if not full, is faster than single rows

// Up to sixteen rows of inputs -> [inputs][16]. The places of missing rows get copies of the last one, which nothing reads.
void pack_tile(const Step& s, int first, int height, float* to) {
  const float* row[kPanel];
  for (int m = 0; m < kPanel; ++m) row[m] = s.input(first + least(m, height - 1));
  transpose_sixteen(row, s.linear->inputs, to);
}

// All rows: [rows][inputs] -> [rows / 16][inputs][16].
void pack_rows(const Step& s) {
  for (int first = 0; first < s.rows; first += kPanel) {
    const int height = least(kPanel, s.rows - first);
    if (height >= kSparseTileRows) pack_tile(s, first, height, s.packed + static_cast<int64_t>(first) * s.linear->inputs);
  }
}

// One panel of sixteen outputs, for up to sixteen rows: result[n][m] -> out[m][n].
DG_INLINE void write_panel(const Step& s, int panel, int first, int height, const float (*result)[kPanel]) {
  const int unit = panel * kPanel;
  const bool one_block = s.out_open.is_open && s.out_open.block % kPanel == 0;  // so no boundary falls within a panel
  for (int m = 0; m < height; ++m) {
    const int row = first + m;
    if (one_block && !s.out_open.has(row, unit_block(s, unit))) continue;
    float line[kPanel];
    for (int n = 0; n < kPanel; ++n) line[n] = result[n][m] + s.bias[unit + n];
    activate(s.linear->activation, line, kPanel, 1.0f);
    float* out = s.out + row * s.out_stride + unit;
    if (one_block && s.out_open.factor) {
      const float factor = s.out_open.factor[row * s.out_open.blocks + unit_block(s, unit)];
      for (int n = 0; n < kPanel; ++n) line[n] *= factor;
    }
    if (!s.out_open.is_open || one_block) {
      memcpy(out, line, sizeof line);
      continue;
    }
    for (int n = 0; n < kPanel; ++n) {
      const int block = unit_block(s, unit + n);
      if (block >= s.out_open.blocks || !s.out_open.has(row, block)) continue;
      out[n] = s.out_open.factor ? line[n] * s.out_open.factor[row * s.out_open.blocks + block] : line[n];
    }
  }
}

void run_csr(const Step& s, int begin, int end) {
  const int32_t* start = s.words + s.linear->index;
  const uint16_t* index = reinterpret_cast<const uint16_t*>(start + s.linear->width + 1);
  float result[kPanel][kPanel];  // [outputs][rows]
  for (int first = 0; first < s.rows; first += kPanel) {
    const int height = least(kPanel, s.rows - first);
    const float* packed = s.packed + (s.packs_tiles ? 0 : static_cast<int64_t>(first) * s.linear->inputs);
    if (s.packs_tiles && height >= kSparseTileRows) pack_tile(s, first, height, s.packed);
    for (int p = begin; p < end; ++p) {
      for (int i = 0; i < kPanel; ++i) {
        const int n = s.panels[p] * kPanel + i, block = unit_block(s, n), count = start[n + 1] - start[n];
        memset(result[i], 0, sizeof result[i]);
        if (s.out_open.is_open && (block >= s.out_open.blocks || !s.out_open.count[block])) continue;
        const float* value = s.weight + start[n];
        if (height >= kSparseTileRows)
          sparse_tile(height, packed, value, index + start[n], count, result[i]);
        else
          for (int m = 0; m < height; ++m)
            result[i][m] = sparse_dot<8>(s.input(first + m), value, index + start[n], count);
      }
      write_panel(s, s.panels[p], first, height, result);
    }
  }
}

}  // namespace
