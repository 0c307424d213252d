// One linear map from start to end: which zero inputs it skips, which panels it computes, and on how many threads.
#pragma once
#include "by_unit.h"
#include "panels.h"
#include "rows.h"
#include "workspace.h"

namespace {

using dynamicgate::Pool;

// With fewer multiply-adds for a thread, waking it costs more than the work it does (measured: 1.6 MB of weights).
constexpr int64_t kWorkWorthATask = 200000;

void run_part(const Step& s, int begin, int end) {
  if (s.linear->layout == dynamicgate::kRows) return run_rows(s, begin, end);
  if (s.linear->layout == dynamicgate::kCsr) return run_csr(s, begin, end);
  if (in_units(*s.linear) && s.rows <= kTileRows) return run_units(s, s.panels[begin], s.panels[end - 1] + 1);
  run_panels(s, begin, end);
}

struct Parts {
  const Step* step;
  int tasks;
};

void run_task(int index, void* context) {
  const Parts& parts = *static_cast<const Parts*>(context);
  // Rows are cut where they would begin a new run anyway: the same bits on any number of threads.
  const int64_t unit = parts.step->linear->layout == dynamicgate::kRows ? kRunPanels : 1;
  const int64_t n = (parts.step->panel_count + unit - 1) / unit;
  const int begin = static_cast<int>(n * index / parts.tasks * unit), end = static_cast<int>(n * (index + 1) / parts.tasks * unit);
  run_part(*parts.step, begin, least(end, parts.step->panel_count));
}

// Multiply-adds of the step if everything listed were dense: used only to choose the number of threads.
int64_t work(const Step& s) {
  if (in_units(*s.linear) && s.rows <= kTileRows) return int64_t{s.linear->inputs} * s.listed_count * s.rows;
  int64_t inputs = in_inputs(*s.linear) && s.rows <= kTileRows ? *s.nonzero.count : s.linear->inputs;
  if (s.in_open.is_open && s.linear->layout != dynamicgate::kRows) {
    inputs = 0;
    for (int b = 0; b < s.in_open.blocks; ++b) inputs += static_cast<int64_t>(s.in_open.count[b]) * s.in_open.block;
    inputs /= s.rows;
  }
  return inputs * s.panel_count * kPanel * (s.out_open.is_open ? (s.rows + 3) / 4 : s.rows);
}

// Zero inputs are skipped where the layer asks for it, and in a single row whenever there are many: after a ReLU every
// other input is zero, and with one row all the time goes into reading weights.
bool should_skip_zeros(const Linear& linear, const float* in, const Openness& open, int rows) {
  if (linear.skip_zeros) return true;
  if (in_inputs(linear)) return false;  // it leaves out more than zeros
  if (rows > 1 || open.block > UINT16_MAX || (open.is_open && open.block == 1)) return false;
  int zeros = 0, inputs = 0;
  for (int b = 0; b < open.blocks; ++b) {
    if (!open.has(0, b)) continue;
    const float* x = in + static_cast<int64_t>(b) * open.block_width;
    const int units = least(open.block, linear.inputs - b * open.block);
    inputs += units;
    for (int k = 0; k < units; ++k) zeros += x[k] == 0.0f;
  }
  return zeros > inputs / 3;
}

void list_nonzeros(const Step& s) {
  for (int row = 0; row < s.rows; ++row)
    for (int b = 0; b < s.in_open.blocks; ++b) {
      if (!s.in_open.has(row, b)) continue;
      const float* x = s.in + row * s.in_stride + static_cast<int64_t>(b) * s.in_open.block_width;
      const int64_t to = static_cast<int64_t>(row) * s.linear->inputs + static_cast<int64_t>(b) * s.in_open.block;
      float* value = s.nonzero.value + to;
      uint16_t* index = s.nonzero.index + to;
      int count = 0;
      for (int k = 0; k < s.units(b); ++k) {
        value[count] = x[k];
        index[count] = static_cast<uint16_t>(k);
        count += x[k] != 0.0f;
      }
      s.nonzero.count[row * s.in_open.blocks + b] = count;
    }
}

void run_step(Step& s, int* panels, const Pool* pool) {
  for (int p = 0; p < s.linear->width / kPanel; ++p) {
    int needed = !s.out_open.is_open;
    if (!needed) {
      const int width = s.out_open.block_width, last = s.out_open.blocks - 1;
      const int first = least(p * kPanel / width, last), until = least((p * kPanel + kPanel - 1) / width, last);
      for (int b = first; b <= until; ++b) needed |= s.out_open.count[b];
    }
    if (needed) panels[s.panel_count++] = p;
  }
  s.panels = panels;
  Parts parts = {&s, 1};
  if (pool && pool->threads > 1) {
    const int64_t useful = least<int64_t>(work(s) / kWorkWorthATask, pool->threads * 2);
    parts.tasks = static_cast<int>(most<int64_t>(1, least<int64_t>(useful, s.panel_count)));
  }
  s.packs_tiles = s.packs_tiles && parts.tasks == 1;
  if (s.linear->layout == dynamicgate::kCsr && !s.is_packed && !s.packs_tiles) pack_rows(s);
  if (parts.tasks > 1) return pool->run(*pool, parts.tasks, run_task, &parts);
  run_task(0, &parts);
}

Step make_step(const Call& call, const Linear& linear, const float* in, int64_t in_stride, const Openness& in_open,
               float* out, int64_t out_stride, const Openness& out_open, int rows) {
  Step s = {};
  s.linear = &linear;
  s.weight = call.weights + static_cast<int64_t>(linear.weight) * kPanel;
  s.bias = call.weights + static_cast<int64_t>(linear.bias) * kPanel;
  s.words = reinterpret_cast<const int32_t*>(call.program);
  s.in = in, s.in_stride = in_stride, s.in_open = in_open;
  s.out = out, s.out_stride = out_stride, s.out_open = out_open;
  s.rows = rows;
  return s;
}

Openness everything(int inputs) {
  Openness all = {};
  all.blocks = 1, all.block = inputs, all.block_width = inputs;
  return all;
}

// The columns layout ignores blocks: it walks through all of its inputs at once.
Openness read_by(const Linear& linear, const Openness& in_open) {
  return linear.layout == dynamicgate::kColumns ? everything(linear.inputs) : in_open;
}

// Whether a step skips zero inputs: vectors and columns look for them themselves, and only in a single row.
bool skips(const Linear& linear, bool found, int rows) {
  if (linear.layout == dynamicgate::kColumns) return rows == 1;
  return found && (rows == 1 || linear.skip_zeros || in_panels(linear));
}

// Whether closed blocks of the input are read like open ones, so that they must hold zeros.
bool reads_densely(const Linear& linear) {
  return linear.layout == dynamicgate::kRows || linear.layout == dynamicgate::kCsr ||
         linear.layout == dynamicgate::kColumns;
}

// Sparse columns read their inputs in no order, once for each panel. The inputs of all rows that run together must stay in
// the L2 cache; reading the few weights more often costs less.
struct RowsAtOnce {
  int64_t inputs = 0, dense = 0;
  void add(const Linear& linear) {
    if (linear.layout == dynamicgate::kVectors || linear.layout == dynamicgate::kColumns)
      inputs = most<int64_t>(inputs, linear.inputs);
    else if (linear.layout != dynamicgate::kCsr)
      dense += static_cast<int64_t>(linear.inputs) * linear.width;
  }
  int64_t rows() const {
    constexpr int64_t kCachedInputs = 1 << 15, kFewWeights = 1 << 16, kFewestRows = 10;
    if (!inputs || dense > kFewWeights) return kChunkRows;
    return most<int64_t>(kFewestRows, least<int64_t>(kChunkRows, kCachedInputs / inputs));
  }
};

}  // namespace
