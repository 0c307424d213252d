// A stack of layers whose rows stop early: stage by stage, over the rows that are still open.
#pragma once
#include <math.h>

#include "linear.h"

namespace {

using dynamicgate::Part;

struct StageBuffers {
  float *x, *hidden, *sum, *added, *score, *packed;
  int64_t hidden_stride, sum_stride;
  Nonzero of_x, of_hidden;
  int *panels, *row, *open;
};

// What is known about the zeros of a single row of inputs, which every stage reads.
struct InputZeros {
  bool counted = false, many = false, listed = false;
};

// What later stages read of the inputs: sparse rows find them where they are, other layouts need open rows side by side.
bool moves_inputs(const Program& program) {
  for (int k = 1; k < program.stages; ++k)
    if (program.parts(k)[0].linear.layout != dynamicgate::kCsr) return true;
  return false;
}

struct StageRun {
  const Call& call;
  const Program& program;
  const Pool* pool;
  StageBuffers buffers;
  const float* x;
  int64_t x_stride;
  int rows;       // that are still open
  InputZeros zeros;
  const bool moves;  // open rows of the inputs to the front
  float* hidden(int layer, int64_t row) const {
    return buffers.hidden + (static_cast<int64_t>(layer) * kept_rows + row) * buffers.hidden_stride;
  }
  int kept_rows;  // at the start
};

StageBuffers allot_stages(const Call& call, int rows, Allotter& memory) {
  const Program& program = *call.program;
  int64_t width = 0, panels = 0, packed = 0, nonzero = 0;
  for (int k = 0; k < program.stages; ++k)
    for (int l = 0; l < program.layers; ++l) {
      const Part& part = program.parts(k)[l];
      panels = most<int64_t>(panels, part.linear.width / kPanel);
      if (l + 1 < program.layers) width = most<int64_t>(width, part.to + part.linear.width);
      if (part.linear.layout == dynamicgate::kCsr) packed = most<int64_t>(packed, part.linear.inputs);
      nonzero = most<int64_t>(nonzero, part.linear.inputs * static_cast<int64_t>(part.linear.skip_zeros ? rows : 1));
    }
  StageBuffers b = {};
  b.hidden_stride = spread(width);
  b.sum_stride = program.parts(0)[program.layers - 1].linear.width;
  const bool moves = (rows > 1 && moves_inputs(program)) || call.x_column_stride != 1;
  if (moves) b.x = memory.take<float>(static_cast<int64_t>(rows) * program.inputs);
  b.hidden = memory.take<float>((program.layers - 1) * static_cast<int64_t>(rows) * b.hidden_stride);
  b.sum = memory.take<float>(rows * b.sum_stride);
  b.added = memory.take<float>(rows * b.sum_stride);
  if (program.decide == dynamicgate::kHead) b.score = memory.take<float>(static_cast<int64_t>(rows) * kPanel);
  if (packed) b.packed = memory.take<float>((rows + kPanel - 1) / kPanel * kPanel * packed);
  for (int i = 0; i < 2; ++i) {
    Nonzero& list = i ? b.of_hidden : b.of_x;
    list.value = memory.take<float>(nonzero + 1);  // one more: see allot
    list.index = memory.take<uint16_t>(nonzero + 1);
    list.count = memory.take<int>(rows);
  }
  b.panels = memory.take<int>(panels);
  b.row = memory.take<int>(rows);
  b.open = memory.take<int>(rows);
  return b;
}

// One part of a layer for `rows` rows. `zeros`: what earlier stages found in this input, or null.
void run_linear(StageRun& run, const Linear& linear, const float* in, const int* in_row, int64_t in_stride, float* out,
                int64_t out_stride, int rows, const Nonzero& list, InputZeros* zeros) {
  const Openness all = everything(linear.inputs);
  bool skip = false;
  if (!reads_densely(linear)) {
    if (!zeros || linear.skip_zeros) {
      skip = should_skip_zeros(linear, in, all, rows);
    } else {
      if (!zeros->counted) zeros->many = should_skip_zeros(linear, in, all, rows), zeros->counted = true;
      skip = zeros->many;
    }
  }
  Step s = make_step(run.call, linear, in, in_stride, all, out, out_stride, everything(linear.width), rows);
  s.in_row = in_row;
  s.nonzero = list;
  if (skip && (in_panels(linear) || linear.skip_zeros) && !(zeros && zeros->listed)) {
    list_nonzeros(s);
    if (zeros) zeros->listed = true;
  }
  s.skip = skips(linear, skip, rows);
  s.packed = run.buffers.packed, s.packs_tiles = true;
  run_step(s, run.buffers.panels, run.pool);
}

// All layers of stage `k` for the rows begin..begin+rows-1 of those that are open.
void run_stage(StageRun& run, int k, int begin, int rows) {
  const Program& program = run.program;
  const StageBuffers& b = run.buffers;
  const Part* parts = program.parts(k);
  const int last = program.layers - 1;
  float* sum = b.sum + begin * b.sum_stride;
  float* result = k ? b.added : sum;
  for (int l = 0; l <= last; ++l) {
    const Part& part = parts[l];
    const bool in_place = !l && k && !run.moves;  // in the first stage all rows are where they were
    const float* in = l ? run.hidden(l - 1, begin) + part.from : run.x + (in_place ? 0 : begin * run.x_stride);
    float* out = l == last ? result : run.hidden(l, begin) + part.to;
    // A single row is never moved, so what was found in its inputs stays true.
    run_linear(run, part.linear, in, in_place ? b.row + begin : nullptr, l ? b.hidden_stride : run.x_stride, out,
               l == last ? b.sum_stride : b.hidden_stride, rows, l ? b.of_hidden : b.of_x,
               l || run.kept_rows > 1 ? nullptr : &run.zeros);
  }
  if (k)
    for (int row = 0; row < rows; ++row)
      for (int c = 0; c < program.outputs; ++c) sum[row * b.sum_stride + c] += result[row * b.sum_stride + c];
  if (program.decide == dynamicgate::kHead && k + 1 < program.stages) {
    const Part& head = parts[program.layers];
    run_linear(run, head.linear, run.hidden(last - 1, begin) + head.from, nullptr, b.hidden_stride,
               b.score + static_cast<int64_t>(begin) * kPanel, kPanel, rows, b.of_hidden, nullptr);
  }
}

// The second largest output minus the largest. NaN if any is NaN, as in torch, whose topk takes NaN for the largest.
DG_INLINE float margin_score(const float* z, int count) {
  float first = -INFINITY, second = -INFINITY;
  bool is_nan = false;
  for (int c = 0; c < count; ++c) {
    is_nan |= z[c] != z[c];
    second = z[c] > first ? first : z[c] > second ? z[c] : second;
    first = z[c] > first ? z[c] : first;
  }
  return is_nan ? NAN : second - first;
}

float entropy_score(const float* z, int count) {
  float largest = -INFINITY, total = 0.0f, entropy = 0.0f;
  for (int c = 0; c < count; ++c) largest = z[c] > largest ? z[c] : largest;
  for (int c = 0; c < count; ++c) total += exponential(z[c] - largest);
  for (int c = 0; c < count; ++c) {
    const float p = exponential(z[c] - largest) / total;
    if (p != 0.0f) entropy -= p * logf(p);
  }
  return entropy;
}

DG_INLINE float score_of(const StageRun& run, int row) {
  const float* z = run.buffers.sum + row * run.buffers.sum_stride;
  switch (run.program.decide) {
    case dynamicgate::kHead: return run.buffers.score[static_cast<int64_t>(row) * kPanel];
    case dynamicgate::kEntropy: return entropy_score(z, run.program.outputs);
    default: return margin_score(z, run.program.outputs);
  }
}

// Moves what later stages read of the open rows to the front.
void close_ranks(StageRun& run, int k, int open) {
  const Program& program = run.program;
  StageBuffers& b = run.buffers;
  const bool is_copied = run.x == b.x;
  const int hidden_layers = program.layers - 1;
  const int read_again = program.decide == dynamicgate::kHead ? hidden_layers : hidden_layers - 1;
  for (int to = 0; to < open; ++to) {
    const int from = b.open[to];
    if (run.moves && (!is_copied || from != to))
      memcpy(b.x + static_cast<int64_t>(to) * program.inputs, run.x + from * run.x_stride, sizeof(float) * program.inputs);
    if (from == to) continue;
    for (int l = 0; l < read_again; ++l) {
      const Part& part = program.parts(k)[l];
      memcpy(run.hidden(l, to), run.hidden(l, from), sizeof(float) * (part.to + part.linear.width));
    }
    memcpy(b.sum + to * b.sum_stride, b.sum + from * b.sum_stride, sizeof(float) * program.outputs);
    b.row[to] = b.row[from];
  }
  if (run.moves) run.x = b.x, run.x_stride = program.inputs;
  run.rows = open;
}

void run_stages(const Call& call, int64_t first, int rows, const Pool* pool) {
  static thread_local Workspace workspace;
  Allotter count = {nullptr};
  allot_stages(call, rows, count);
  workspace.reserve(count.total);
  Allotter memory = {&workspace};
  const Program& program = *call.program;
  StageRun run = {call, program, pool, allot_stages(call, rows, memory), call.x + first * call.x_row_stride,
                  call.x_row_stride, rows, {}, moves_inputs(program), rows};
  StageBuffers& b = run.buffers;
  if (call.x_column_stride != 1) {
    for (int row = 0; row < rows; ++row)
      for (int i = 0; i < program.inputs; ++i)
        b.x[static_cast<int64_t>(row) * program.inputs + i] = run.x[row * run.x_stride + i * call.x_column_stride];
    run.x = b.x, run.x_stride = program.inputs;
  }
  for (int row = 0; row < rows; ++row) b.row[row] = row;
  for (int k = 0; k < program.stages; ++k) {
    RowsAtOnce at_once;
    for (int l = 0; l < program.layers; ++l) at_once.add(program.parts(k)[l].linear);
    const int chunk = static_cast<int>(at_once.rows());
    for (int begin = 0; begin < run.rows; begin += chunk) run_stage(run, k, begin, least(chunk, run.rows - begin));
    const bool last = k + 1 == program.stages;
    int open = 0;
    for (int row = 0; row < run.rows; ++row) {
      if (!last && score_of(run, row) > program.cut()[k]) {
        b.open[open++] = row;
        continue;
      }
      memcpy(call.y + (first + b.row[row]) * program.outputs, b.sum + row * b.sum_stride, sizeof(float) * program.outputs);
    }
    if (!open) return;
    if (open < run.rows) close_ranks(run, k, open);
  }
}

}  // namespace
