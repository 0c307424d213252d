// Rows with NaN or infinite values. Skipping is exact only for finite numbers: 0 * 1 is 0, but 0 * inf and 0 * NaN are NaN.
// Such rows are found at little cost and computed once more in the plainest way, with every zero multiplied, as a dense
// layer would do it.
#pragma once
#include <math.h>

#include "by_unit.h"
#include "gate.h"
#include "workspace.h"

namespace {

constexpr float kLargest = 1e30f;  // beyond it a sum may overflow: such rows are not skipped through either
constexpr float kLargestFactor = 1e15f;  // of units that are multiplied with each other

// Whether all are numbers of ordinary size. On the bits: NaN and infinity are the largest.
DG_INLINE bool ordinary(const float* x, int64_t count, float below = kLargest) {
  uint32_t limit, largest = 0;
  memcpy(&limit, &below, 4);
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    memcpy(&bits, x + i, 4);
    largest = most(largest, bits & 0x7fffffffu);
  }
  return largest <= limit;
}

// The rows of a chunk that are not ordinary.
struct OddRows {
  uint8_t is_odd[kChunkRows];
  bool any = false, looked = false;  // looked: the inputs of the chain are known
  void clear(int rows) { memset(is_odd, 0, rows); }
  void add(int row) { is_odd[row] = 1, any = true; }
  void look_at(const float* x, int64_t stride, int64_t count, int rows, float below = kLargest) {
    for (int row = 0; row < rows; ++row)
      if (!ordinary(x + row * stride, count, below)) add(row);
    looked = true;
  }
};

// Single inputs are left out for being small, and then odd ones are not.
bool is_sparse(const Linear& linear) {
  return !in_panels(linear) && !in_inputs(linear) && !in_units(linear) && linear.layout != dynamicgate::kRows;
}

// Whether an odd input always shows in what the first map of the gate gives. It multiplies every input, and a sum with
// an infinity or NaN is never a number; but a ReLU makes 0 of -inf. Then a padded output tells: its weights are zero, so
// it is 0, or NaN if an input is odd.
bool shows_odd_inputs(const Layer& layer) {
  const Linear& first = layer.gate[0];
  if (!layer.gate_stages || is_sparse(first)) return false;
  if (first.activation == dynamicgate::kIdentity || first.activation == dynamicgate::kNearest) return true;
  return first.layout == dynamicgate::kPanels && first.width > first.units;
}

// Whether the layer leaves out products, and so has to know which rows are odd.
bool leaves_out(const Layer& layer) {
  if (layer.blocks || is_sparse(layer.main) || in_units(layer.value)) return true;
  return layer.gate_stages && is_sparse(layer.gate[0]);
}

// Units and their positions in a row: blocks may be padded.
struct Positions {
  int units, block, block_width;
  int of(int unit) const { return unit / block * block_width + unit % block; }
};

// What is known about each position of a plain result.
struct Met {
  int* odd;       // odd inputs that a stored weight multiplied
  uint8_t* used;  // whether any weight or the bias is not zero
};

// out[position] = w . in + b for every position, without the activation. `in` has the units without padding.
void plain_linear(const Call& call, const Linear& linear, const float* in, const Positions& from, float* out,
                  const Met& met) {
  const float* weight = call.weights + static_cast<int64_t>(linear.weight) * kPanel;
  const float* bias = call.weights + static_cast<int64_t>(linear.bias) * kPanel;
  const int32_t* start = reinterpret_cast<const int32_t*>(call.program) + linear.index;
  const float* threshold = in_inputs(linear) || in_units(linear) ? thresholds_of(linear, bias) : nullptr;
  const int panels = linear.width / kPanel;
  int odd = 0;
  for (int k = 0; k < from.units; ++k) odd += !ordinary(in + k, 1);
  memcpy(out, bias, sizeof(float) * linear.width);
  memset(met.odd, 0, sizeof(int) * linear.width);
  for (int n = 0; n < linear.width; ++n) met.used[n] = bias[n] != 0.0f;
  const auto add = [&](int position, int unit, float value) {
    out[position] += threshold && is_below(in[unit], threshold[unit]) ? 0.0f : value * in[unit];
    met.odd[position] += !ordinary(in + unit, 1);
    met.used[position] |= value != 0.0f;
  };
  const auto add_vector = [&](int panel, int unit, const float* values) {
    for (int lane = 0; lane < kPanel; ++lane) add(panel * kPanel + lane, unit, values[lane]);
  };
  // Inputs of the layouts that count padding as inputs: which unit is at a position, -1 for padding.
  const auto unit_at = [&](int position) {
    const int within = position % from.block_width, unit = position / from.block_width * from.block + within;
    return within < from.block && unit < from.units ? unit : -1;
  };
  const float* scale = in_bytes(linear) ? bias + linear.width : nullptr;
  const auto add_panels = [&](const auto* values) {
    int64_t at = 0;
    for (int begin = 0; begin < from.units; begin += from.block) {
      const int units = least(from.block, from.units - begin);
      for (int p = 0; p < panels; ++p)
        for (int k = 0; k < units; ++k)
          for (int lane = 0; lane < kPanel; ++lane, ++at) {
            const int position = p * kPanel + lane;
            add(position, begin + k, widened(values[at]) * (scale ? scale[position] : 1.0f));
          }
    }
  };
  const auto add_inputs = [&](const auto* values) {
    for (int k = 0; k < from.units; ++k)
      for (int n = 0; n < linear.width; ++n)
        add(n, k, widened(values[static_cast<int64_t>(k) * linear.width + n]) * (scale ? scale[n] : 1.0f));
  };
  const auto add_units = [&](const auto* values) {
    for (int n = 0; n < linear.width; ++n, values += unit_weights(linear))
      for (int k = 0; k < from.units; ++k) add(n, k, widened(values[k]) * (scale ? scale[n] : 1.0f));
  };
  switch (linear.layout) {
    case dynamicgate::kPanels:
      add_panels(weight);
      break;
    case dynamicgate::kHalfPanels:
      add_panels(reinterpret_cast<const Half*>(weight));
      break;
    case dynamicgate::kBytePanels:
      add_panels(reinterpret_cast<const Byte*>(weight));
      break;
    case dynamicgate::kInputs:
      add_inputs(weight);
      break;
    case dynamicgate::kHalfInputs:
      add_inputs(reinterpret_cast<const Half*>(weight));
      break;
    case dynamicgate::kByteInputs:
      add_inputs(reinterpret_cast<const Byte*>(weight));
      break;
    case dynamicgate::kUnits:
      add_units(weight);
      break;
    case dynamicgate::kHalfUnits:
      add_units(reinterpret_cast<const Half*>(weight));
      break;
    case dynamicgate::kByteUnits:
      add_units(reinterpret_cast<const Byte*>(weight));
      break;
    case dynamicgate::kRows:
      for (int n = 0; n < linear.width; ++n)
        for (int k = 0; k < from.units; ++k) add(n, k, weight[static_cast<int64_t>(n) * linear.inputs + from.of(k)]);
      break;
    case dynamicgate::kCsr: {
      const uint16_t* index = reinterpret_cast<const uint16_t*>(start + linear.width + 1);
      for (int n = 0; n < linear.width; ++n)
        for (int i = start[n]; i < start[n + 1]; ++i)
          if (unit_at(index[i]) >= 0) add(n, unit_at(index[i]), weight[i]);
      break;
    }
    default: {
      const bool by_input = linear.layout == dynamicgate::kVectors && linear.skip_zeros;
      const bool through = linear.layout == dynamicgate::kColumns;
      const int blocks = through ? 1 : (from.units + from.block - 1) / from.block;
      const int groups = by_input ? linear.inputs : blocks * panels;
      const uint16_t* index = reinterpret_cast<const uint16_t*>(start + groups + 1);
      for (int group = 0; group < groups; ++group)
        for (int i = start[group]; i < start[group + 1]; ++i) {
          const int panel = by_input ? index[i] : group % panels;
          const int unit = by_input ? group : through ? unit_at(index[i]) : group / panels * from.block + index[i];
          if (unit >= 0) add_vector(panel, unit, weight + static_cast<int64_t>(i) * kPanel);
        }
    }
  }
  for (int n = 0; n < linear.width; ++n)
    if (met.odd[n] < odd)  // zero weights that are not stored: 0 * inf
      for (int k = 0; k < from.units; ++k) out[n] += 0.0f * in[k];
}

// From 1 for open and 0 for closed blocks to the softmax over the open ones, as in the model: where the largest of them is
// infinite or NaN, all open blocks are NaN.
void plain_shares(const float* z, int blocks, float inverse_tau, float* factor) {
  float top = -INFINITY, total = 0.0f;
  for (int b = 0; b < blocks; ++b)
    if (factor[b] != 0.0f && !(z[b] <= top)) top = z[b] != z[b] || top != top ? NAN : z[b];
  for (int b = 0; b < blocks; ++b)
    if (factor[b] != 0.0f) total += factor[b] = exponential((z[b] - top) * inverse_tau);
  for (int b = 0; b < blocks; ++b)
    if (factor[b] != 0.0f) factor[b] /= total;
}

// What each block is multiplied by. As in the model, the factor of a NaN is NaN, and NaN is the largest of the top k.
void plain_factors(const Layer& layer, const float* cut, const float* z, float* factor) {
  for (int b = 0; b < layer.blocks; ++b) {
    int larger = 0;  // those that come before it among the largest
    for (int other = 0; other < layer.blocks; ++other) {
      const bool is_nan = z[b] != z[b], other_nan = z[other] != z[other];
      const bool equal = z[other] == z[b] || (is_nan && other_nan);
      larger += (other_nan && !is_nan) || (!is_nan && z[other] > z[b]) || (equal && other < b);
    }
    const bool is_open = z[b] > cut[b] || larger < layer.top_k;
    factor[b] = 1.0f;
    if (layer.inverse_tau > 0.0f) factor[b] = sigmoid(z[b] * layer.inverse_tau);
    if (layer.inverse_soft_width != 0.0f) {
      const float height = (z[b] - cut[b]) * fabsf(layer.inverse_soft_width);
      const bool is_full = layer.inverse_soft_width > 0.0f && height > 1.0f;
      factor[b] = is_full ? 1.0f : height < 0.0f ? 0.0f : height;
    }
    if (layer.inverse_tau < 0.0f)  // which ones are open, for the softmax
      factor[b] = is_open || z[b] != z[b];
    else
      factor[b] = z[b] != z[b] ? z[b] : is_open ? factor[b] : factor[b] * 0.0f;
  }
  if (layer.inverse_tau < 0.0f) plain_shares(z, layer.blocks, -layer.inverse_tau, factor);
}

// Zeros for factors that are not above their threshold.
void close_factors(const Call& call, const Linear& value, float* factor) {
  const float* threshold = factor_thresholds_of(value, call.weights + static_cast<int64_t>(value.bias) * kPanel);
  for (int n = 0; n < value.units; ++n) factor[n] = is_below(factor[n], threshold[n]) ? 0.0f : factor[n];
}

void run_plain_row(const Call& call, int64_t row) {
  static thread_local Workspace workspace;
  const Program& program = *call.program;
  int64_t width = program.inputs;
  for (int l = 0; l < program.layers; ++l) {
    const Layer& layer = program.layer()[l];
    width = most<int64_t>(width, layer.main.width);
    for (int g = 0; g < layer.gate_stages; ++g) width = most<int64_t>(width, layer.gate[g].width);
  }
  float *h = nullptr, *out = nullptr, *value = nullptr, *z[2] = {}, *factor = nullptr;
  Met met = {};
  for (int pass = 0; pass < 2; ++pass) {  // first to count, then to take
    Allotter memory = {pass ? &workspace : nullptr};
    h = memory.take<float>(width), out = memory.take<float>(width), factor = memory.take<float>(width);
    value = memory.take<float>(width);
    z[0] = memory.take<float>(width), z[1] = memory.take<float>(width), met = {memory.take<int>(width), memory.take<uint8_t>(width)};
    if (!pass) workspace.reserve(memory.total);
  }
  for (int k = 0; k < program.inputs; ++k) h[k] = call.x[row * call.x_row_stride + k * call.x_column_stride];
  Positions from = {program.inputs, program.inputs, program.inputs};
  for (int l = 0; l < program.layers; ++l) {
    const Layer& layer = program.layer()[l];
    const float* read = h;
    Positions read_from = from;
    for (int g = 0; g < layer.gate_stages; ++g) {
      const Linear& stage = layer.gate[g];
      plain_linear(call, stage, read, read_from, z[g], met);
      activate(stage.activation, z[g], stage.units, 1.0f);
      if (stage.activation == dynamicgate::kNearest) {
        const int best = place_of_largest(z[g], stage.units);
        for (int n = 0; n < stage.units; ++n) z[g][n] = n == best ? 1.0f : 0.0f;
      }
      read = z[g], read_from = {stage.units, stage.units, stage.units};
    }
    if (layer.gate_stages) plain_factors(layer, call.weights + static_cast<int64_t>(layer.cut) * kPanel, read, factor);
    else if (layer.blocks) memcpy(factor, call.factor + row * layer.blocks, sizeof(float) * layer.blocks);
    plain_linear(call, layer.main, h, from, out, met);
    activate(layer.main.activation, out, layer.main.width, 1.0f);
    if (layer.value.units) {
      if (in_units(layer.value)) close_factors(call, layer.value, out);
      plain_linear(call, layer.value, h, from, value, met);
      for (int n = 0; n < layer.main.width; ++n) out[n] *= value[n];
    }
    const int units = layer.main.units, block = layer.blocks ? layer.block : units;
    from = {units, block, layer.blocks ? layer.block_width : units};
    for (int n = 0; n < units; ++n) h[n] = layer.blocks ? out[from.of(n)] * factor[n / block] : out[from.of(n)];
  }
  memcpy(call.y + row * program.outputs, h, sizeof(float) * program.outputs);
}

}  // namespace
