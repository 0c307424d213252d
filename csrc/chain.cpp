// Runs a chain of layers over a batch. Compiled once for each instruction set; DG_LEVEL names the copy.
#define DG_JOIN(a, b) a##b
#define DG_NAME(a, b) DG_JOIN(a, b)

#include "decoder.h"
#include "gate.h"
#include "linear.h"
#include "plain_stages.h"

namespace {

void zero_closed_blocks(const Openness& open, float* h, int64_t stride, int64_t width, int rows) {
  for (int row = 0; row < rows; ++row)
    for (int b = 0; b < open.blocks; ++b)
      if (!open.is_open[row * open.blocks + b]) {
        const int64_t begin = static_cast<int64_t>(b) * open.block_width;
        memset(h + row * stride + begin, 0, sizeof(float) * least<int64_t>(open.block_width, width - begin));
      }
}

// Whether nearly everything is open, so that computing the rest too costs less than leaving it out.
bool runs_densely(const Layer& layer, const Layer& next, const Openness& open, int rows) {
  constexpr double kFrom = 0.93;  // 512-8192-512, blocks of 64: at 0.9 open, leaving out still gains 0 to 5 %
  if (rows <= kTileRows || !in_panels(layer.main) || !in_panels(next.main)) return false;
  int64_t count = 0;
  for (int b = 0; b < open.blocks; ++b) count += open.count[b];
  return static_cast<double>(count) >= kFrom * rows * open.blocks;
}

// Multiplies blocks by their factors, closed ones by zero. What is left counts as open.
void scale_all_blocks(Openness& open, float* h, int64_t stride, int64_t width, int rows) {
  zero_closed_blocks(open, h, stride, width, rows);
  for (int row = 0; open.factor && row < rows; ++row)
    for (int b = 0; b < open.blocks; ++b) {
      const int64_t begin = static_cast<int64_t>(b) * open.block_width, end = least(begin + open.block_width, width);
      const float factor = open.factor[row * open.blocks + b];
      for (int64_t n = begin; open.has(row, b) && n < end; ++n) h[row * stride + n] *= factor;
    }
  memset(open.is_open, 1, static_cast<size_t>(rows) * open.blocks);
  list_rows(open, rows);
  open.whole = true;
}

// h *= value for what is open: the second projection of a SwiGLU.
void multiply(const Layer& layer, const Openness& open, const float* value, int64_t value_stride, float* h, int64_t stride,
              int rows) {
  const int64_t width = layer.main.width;
  for (int row = 0; row < rows; ++row)
    for (int b = 0; b < open.blocks; ++b) {
      if (!open.has(row, b)) continue;
      const int64_t begin = static_cast<int64_t>(b) * open.block_width, end = least(begin + open.block_width, width);
      for (int64_t n = begin; n < end; ++n) h[row * stride + n] *= value[row * value_stride + n];
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
  OddRows odd;
  odd.clear(rows);

  for (int l = 0; l < program.layers; ++l) {
    const Layer& layer = program.layer()[l];
    const bool last = l + 1 == program.layers;
    const bool skip = !reads_densely(layer.main) && should_skip_zeros(layer.main, in, in_open, rows);
    // Until a layer leaves something out, all are whole: `in` has one block.
    if (layer.value.units && (layer.blocks || in_units(layer.value))) odd.look_at(in, in_stride, in_open.block, rows, kLargestFactor);
    if (!odd.looked && leaves_out(layer) && !shows_odd_inputs(layer)) odd.look_at(in, in_stride, in_open.block, rows);
    bool is_packed = false;  // whether the gate has already packed the rows: the layer can read the same copy
    const bool listed = in_panels(layer.main) || layer.main.skip_zeros ||
                        (layer.gate_stages && in_panels(layer.gate[0]));
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
        if (stage.activation == dynamicgate::kNearest) {  // the first of two maps: what it names is looked up in the second
          odd.look_at(buffers.logits[0], stage.width, stage.units, rows);
          look_up_nearest(layer, call.weights, buffers.logits[0], buffers.logits[1], rows);
          z = buffers.logits[1], z_stride = layer.gate[1].width;
          break;
        }
        if (g == 0 && stage.activation != dynamicgate::kIdentity && shows_odd_inputs(layer))
          odd.look_at(buffers.logits[0] + stage.units, stage.width, 1, rows);
        z = buffers.logits[g], z_stride = stage.width, z_open = everything(stage.width);
      }
      if (layer.gate_stages)
        odd.look_at(z, z_stride, layer.blocks, rows), decide(layer, call.weights, z, z_stride, open, rows);
      else
        decide_given(call.factor + first * layer.blocks, open, rows);
    }
    const bool densely = layer.blocks && !last && runs_densely(layer, program.layer()[l + 1], open, rows);
    const Openness computed = densely ? everything(layer.main.width) : open;
    const bool in_place = last && layer.main.width == layer.main.units;  // no padding: straight into the result
    float* out = in_place ? y : buffers.hidden[l % 2];
    const int64_t out_stride = in_place ? layer.main.width : buffers.hidden_stride;
    Step s = make_step(call, layer.main, in, in_stride, read_by(layer.main, in_open), out, out_stride, computed, rows);
    s.skip = skips(layer.main, skip, rows), s.nonzero = buffers.nonzero;
    s.packed = buffers.packed, s.is_packed = is_packed;
    if (in_inputs(layer.main)) take_above(s, buffers.kept, buffers.kept_stride);
    run_step(s, buffers.panels, pool);
    if (layer.value.units) {
      Openness same = computed;
      same.factor = nullptr;  // it has multiplied the units already
      Step v = make_step(call, layer.value, in, in_stride, in_open, buffers.value, buffers.value_stride, same, rows);
      v.skip = s.skip, v.nonzero = buffers.nonzero;
      v.packed = buffers.packed, v.is_packed = layer.main.layout == dynamicgate::kCsr;  // by the step before
      if (in_inputs(layer.main)) take_above(v, buffers.kept, buffers.kept_stride);
      if (in_units(layer.value)) take_factors_above(v, out, out_stride, buffers.units);
      run_step(v, buffers.panels, pool);
      if (in_units(layer.value) && rows <= kTileRows)
        multiply_listed(v, out, out_stride);
      else
        multiply(layer, computed, buffers.value, buffers.value_stride, out, out_stride, rows);
    }
    if (densely) scale_all_blocks(open, out, out_stride, layer.main.width, rows);
    if (layer.blocks && (last || reads_densely(program.layer()[l + 1])))
      zero_closed_blocks(open, out, out_stride, layer.main.width, rows);
    if (last && !in_place) unpad(layer, out, out_stride, y, rows);
    in = out, in_stride = out_stride;
    in_open = layer.blocks ? open : everything(layer.main.units);
  }
  for (int row = 0; odd.any && row < rows; ++row)
    if (odd.is_odd[row]) run_plain_row(call, first + row);
}

void run_stages_of_rows(const Call& call, int64_t first, int rows, const Pool* pool) {
  OddRows odd;
  odd.clear(rows);
  for (int row = 0; row < rows; ++row)  // first of all: it brings the inputs into the cache
    if (!is_ordinary_row(call, first + row)) odd.add(row);
  run_stages(call, first, rows, pool);
  for (int row = 0; odd.any && row < rows; ++row)
    if (odd.is_odd[row]) run_plain_stages(call, first + row);
}

int64_t rows_at_once(const Program& program) {
  if (program.stages) return kChunkRows;  // each stage divides its rows itself
  RowsAtOnce found;
  for (int l = 0; l < program.layers; ++l) found.add(program.layer()[l].main), found.add(program.layer()[l].value);
  return found.rows();
}

void run_some_rows(const Call& call, int64_t first, int rows, const Pool* pool) {
  return call.program->stages ? run_stages_of_rows(call, first, rows, pool) : run_rows_of_batch(call, first, rows, pool);
}

// The weights of a chain, in units of 16 floats, as if all were stored as floats: how a row is summed may not depend on it.
int64_t lines_of_floats(const Program& program) {
  int64_t lines = program.weights;
  for (int l = 0; !program.stages && l < program.layers; ++l) {
    const Layer& layer = program.layer()[l];
    const Linear* const both[] = {&layer.main, &layer.value};
    for (const Linear* linear : both) {
      const int64_t panels = linear->width / kPanel, inputs = in_units(*linear) ? unit_weights(*linear) : linear->inputs;
      if (in_halves(*linear)) lines += panels * inputs / 2;
      if (in_bytes(*linear)) lines += panels * inputs * 3 / 4 - panels;
    }
  }
  return lines;
}

// How many rows run together. It depends on the batch and the program only, never on the number of threads: the order in
// which a row is summed depends on the rows beside it, and the same input must give the same bits on any machine load.
int64_t chunk_rows(const Call& call) {
  constexpr int32_t kCachedLines = 1 << 14;  // 1 MB
  constexpr int64_t kParts = 8, kFewest = 32, kFewestTogether = 256;
  // Every chunk reads all weights, which is cheap only while they stay in a core's cache. Of the rows of a chunk in stages
  // few reach the last stage, and kernels need sixteen of them to be fast.
  const bool together = call.program->stages || lines_of_floats(*call.program) > kCachedLines;
  const int64_t fewest = together ? kFewestTogether : kFewest;
  return least(rows_at_once(*call.program), most(fewest, (call.rows + kParts - 1) / kParts));
}

struct Chunks {
  const Call* call;
  int64_t size;
};

void run_chunk(int index, void* context) {
  const Chunks& chunks = *static_cast<const Chunks*>(context);
  const int64_t first = index * chunks.size;
  run_some_rows(*chunks.call, first, static_cast<int>(least(chunks.size, chunks.call->rows - first)), nullptr);
}

}  // namespace

namespace dynamicgate {

// Many rows are divided among the threads in chunks; few rows are run by all threads together, panel by panel.
void DG_NAME(chain_, DG_LEVEL)(const Call& call) {
  const int threads = call.pool ? call.pool->threads : 1;
  if (poison) memset(call.y, 0xff, sizeof(float) * call.rows * call.program->outputs);
  Chunks chunks = {&call, chunk_rows(call)};
  const int64_t count = (call.rows + chunks.size - 1) / chunks.size;
  if (threads > 1 && count >= threads) return call.pool->run(*call.pool, static_cast<int>(count), run_chunk, &chunks);
  for (int64_t first = 0; first < call.rows; first += chunks.size)
    run_some_rows(call, first, static_cast<int>(least<int64_t>(chunks.size, call.rows - first)), call.pool);
}

void DG_NAME(decode_, DG_LEVEL)(const DecoderCall& call) { run_decoder(call); }

}  // namespace dynamicgate
