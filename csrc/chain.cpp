// Runs a chain of layers over a batch. Compiled once for each instruction set; DG_LEVEL names the copy.
#include "gate.h"
#include "rows.h"
#include "workspace.h"

#define DG_JOIN(a, b) a##b
#define DG_NAME(a, b) DG_JOIN(a, b)

namespace {

using dynamicgate::Pool;

// With fewer multiply-adds for a thread, waking it costs more than the work it does (measured: 1.6 MB of weights).
constexpr int64_t kWorkWorthATask = 200000;

void run_part(const Step& s, int begin, int end) {
  if (s.linear->layout == dynamicgate::kRows) return run_rows(s, begin, end);
  if (s.linear->layout == dynamicgate::kCsr) return run_csr(s, begin, end);
  run_panels(s, begin, end);
}

struct Parts {
  const Step* step;
  int tasks;
};

void run_task(int index, void* context) {
  const Parts& parts = *static_cast<const Parts*>(context);
  const int64_t n = parts.step->panel_count;
  run_part(*parts.step, static_cast<int>(n * index / parts.tasks), static_cast<int>(n * (index + 1) / parts.tasks));
}

// Multiply-adds of the step if everything listed were dense: used only to choose the number of threads.
int64_t work(const Step& s) {
  int64_t inputs = s.linear->inputs;
  if (s.in_open.is_open && s.linear->layout != dynamicgate::kRows) {
    inputs = 0;
    for (int b = 0; b < s.in_open.blocks; ++b) inputs += static_cast<int64_t>(s.in_open.count[b]) * s.in_open.block;
    inputs /= s.rows;
  }
  return inputs * s.panel_count * kPanel * (s.out_open.is_open ? (s.rows + 3) / 4 : s.rows);
}

// Zero inputs are skipped where the layer asks for it, and in a single row whenever there are many: after a ReLU every
// other input is zero, and with one row all the time goes into reading weights.
bool should_skip_zeros(const Layer& layer, const float* in, const Openness& open, int rows) {
  if (layer.main.skip_zeros) return true;
  if (rows > 1 || open.block > UINT16_MAX || (open.is_open && open.block == 1)) return false;
  int zeros = 0, inputs = 0;
  for (int b = 0; b < open.blocks; ++b) {
    if (!open.has(0, b)) continue;
    const float* x = in + static_cast<int64_t>(b) * open.block_width;
    const int units = least(open.block, layer.main.inputs - b * open.block);
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
  if (s.linear->layout == dynamicgate::kCsr && !s.is_packed) pack_rows(s);
  Parts parts = {&s, 1};
  if (pool && pool->threads > 1) {
    const int64_t useful = least<int64_t>(work(s) / kWorkWorthATask, pool->threads * 2);
    parts.tasks = static_cast<int>(least<int64_t>(useful, s.panel_count));
    if (parts.tasks > 1) return pool->run(*pool, parts.tasks, run_task, &parts);
    parts.tasks = 1;
  }
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
  return found && (rows == 1 || linear.skip_zeros || linear.layout == dynamicgate::kPanels);
}

void zero_closed_blocks(const Openness& open, float* h, int64_t stride, int64_t width, int rows) {
  for (int row = 0; row < rows; ++row)
    for (int b = 0; b < open.blocks; ++b)
      if (!open.is_open[row * open.blocks + b]) {
        const int64_t begin = static_cast<int64_t>(b) * open.block_width;
        memset(h + row * stride + begin, 0, sizeof(float) * least<int64_t>(open.block_width, width - begin));
      }
}

// Copies the result without the padding between blocks.
void unpad(const Layer& layer, const float* h, int64_t stride, float* y, int rows) {
  const int block = layer.blocks ? layer.block : layer.main.units, width = layer.blocks ? layer.block_width : layer.main.units;
  for (int row = 0; row < rows; ++row)
    for (int b = 0; b * block < layer.main.units; ++b)
      memcpy(y + static_cast<int64_t>(row) * layer.main.units + b * block, h + row * stride + static_cast<int64_t>(b) * width,
             sizeof(float) * least(block, layer.main.units - b * block));
}

// Whether closed blocks of the input are read like open ones, so that they must hold zeros.
bool reads_densely(const Linear& linear) {
  return linear.layout == dynamicgate::kRows || linear.layout == dynamicgate::kCsr ||
         linear.layout == dynamicgate::kColumns;
}

bool reads_densely(const Layer& layer) {
  return reads_densely(layer.main) || (layer.gate_stages && reads_densely(layer.gate[0]));
}

void run_rows_of_batch(const Call& call, int64_t first, int rows, const Pool* pool) {
  static thread_local Workspace workspace;
  Allotter count = {nullptr};
  allot(call, rows, count);
  workspace.reserve(count.total);
  Allotter memory = {&workspace};
  const Buffers buffers = allot(call, rows, memory);

  const Program& program = *call.program;
  const float* in = call.x + first * call.x_row_stride;
  int64_t in_stride = call.x_row_stride;
  if (buffers.x) {
    for (int row = 0; row < rows; ++row)
      for (int k = 0; k < program.inputs; ++k)
        buffers.x[static_cast<int64_t>(row) * program.inputs + k] = in[row * in_stride + k * call.x_column_stride];
    in = buffers.x, in_stride = program.inputs;
  }
  float* y = call.y + first * program.outputs;
  Openness in_open = everything(program.inputs);

  for (int l = 0; l < program.layers; ++l) {
    const Layer& layer = program.layer()[l];
    const bool last = l + 1 == program.layers;
    const bool skip = !reads_densely(layer.main) && should_skip_zeros(layer, in, in_open, rows);
    bool is_packed = false;  // whether the gate has already packed the rows: the layer can read the same copy
    const bool listed = layer.main.layout == dynamicgate::kPanels || layer.main.skip_zeros ||
                        (layer.gate_stages && layer.gate[0].layout == dynamicgate::kPanels);
    if (skip && listed) {  // once for both the gate and the layer; vectors look for zeros themselves
      Step s = make_step(call, layer.main, in, in_stride, in_open, nullptr, 0, in_open, rows);
      s.nonzero = buffers.nonzero;
      list_nonzeros(s);
    }
    Openness open = everything(layer.main.width);
    if (layer.blocks) {
      open = buffers.open[l % 2];
      open.blocks = layer.blocks, open.block = layer.block, open.block_width = layer.block_width;
      const bool scales = layer.inverse_tau != 0.0f || layer.inverse_soft_width != 0.0f;
      if (layer.gate_stages && !scales) open.factor = nullptr;
      const float* z = in;
      int64_t z_stride = in_stride;
      Openness z_open = in_open;
      for (int g = 0; g < layer.gate_stages; ++g) {
        const Linear& stage = layer.gate[g];
        Step s = make_step(call, stage, z, z_stride, read_by(stage, z_open), buffers.logits[g], stage.width,
                           everything(stage.width), rows);
        if (g == 0) s.skip = skips(stage, skip, rows), s.nonzero = buffers.nonzero;
        s.packed = buffers.packed;
        run_step(s, buffers.panels, pool);
        is_packed = stage.layout == dynamicgate::kCsr;
        z = buffers.logits[g], z_stride = stage.width, z_open = everything(stage.width);
      }
      if (layer.gate_stages)
        decide(layer, call.weights, z, z_stride, open, rows);
      else
        decide_given(call.factor + first * layer.blocks, open, rows);
    }
    const bool in_place = last && layer.main.width == layer.main.units;  // no padding: straight into the result
    float* out = in_place ? y : buffers.hidden[l % 2];
    Step s = make_step(call, layer.main, in, in_stride, read_by(layer.main, in_open), out, layer.main.width, open, rows);
    s.skip = skips(layer.main, skip, rows), s.nonzero = buffers.nonzero;
    s.packed = buffers.packed, s.is_packed = is_packed;
    run_step(s, buffers.panels, pool);
    if (layer.blocks && (last || reads_densely(program.layer()[l + 1])))
      zero_closed_blocks(open, out, layer.main.width, layer.main.width, rows);
    if (last && !in_place) unpad(layer, out, layer.main.width, y, rows);
    in = out, in_stride = layer.main.width;
    in_open = layer.blocks ? open : everything(layer.main.units);
  }
}

// Sparse columns read their inputs in no order, once for each panel. The inputs of all rows in a chunk must stay in the
// L2 cache; reading the few weights more often costs less.
int64_t rows_at_once(const Program& program) {
  constexpr int64_t kCachedInputs = 1 << 15, kFewWeights = 1 << 16, kFewestRows = 10;
  int64_t inputs = 0, dense = 0;
  for (int l = 0; l < program.layers; ++l) {
    const Linear& linear = program.layer()[l].main;
    if (linear.layout == dynamicgate::kVectors || linear.layout == dynamicgate::kColumns)
      inputs = most<int64_t>(inputs, linear.inputs);
    else if (linear.layout != dynamicgate::kCsr)
      dense += static_cast<int64_t>(linear.inputs) * linear.width;
  }
  if (!inputs || dense > kFewWeights) return kChunkRows;
  return most<int64_t>(kFewestRows, least<int64_t>(kChunkRows, kCachedInputs / inputs));
}

struct Chunks {
  const Call* call;
  int64_t size;
};

void run_chunk(int index, void* context) {
  const Chunks& chunks = *static_cast<const Chunks*>(context);
  const int64_t first = index * chunks.size;
  run_rows_of_batch(*chunks.call, first, static_cast<int>(least(chunks.size, chunks.call->rows - first)), nullptr);
}

}  // namespace

namespace dynamicgate {

// Many rows are divided among the threads in chunks; few rows are run by all threads together, panel by panel.
// Every chunk reads all weights, which is cheap only while they stay in a core's cache.
void DG_NAME(chain_, DG_LEVEL)(const Call& call) {
  constexpr int32_t kCachedLines = 1 << 14;  // 1 MB
  const int threads = call.pool ? call.pool->threads : 1;
  if (poison) memset(call.y, 0xff, sizeof(float) * call.rows * call.program->outputs);
  const bool cached = call.program->weights <= kCachedLines;
  if (threads > 1 && call.rows >= threads * (cached ? 8 : 128)) {
    const int64_t parts = cached ? 2 * threads : threads;
    Chunks chunks = {&call, most<int64_t>(8, least<int64_t>(kChunkRows, (call.rows + parts - 1) / parts))};
    const int64_t count = (call.rows + chunks.size - 1) / chunks.size;
    return call.pool->run(*call.pool, static_cast<int>(count), run_chunk, &chunks);
  }
  const int64_t chunk = rows_at_once(*call.program);
  for (int64_t first = 0; first < call.rows; first += chunk)
    run_rows_of_batch(call, first, static_cast<int>(least<int64_t>(chunk, call.rows - first)), call.pool);
}

}  // namespace dynamicgate
