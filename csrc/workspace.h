// The memory a chain needs for the rows of one chunk.
#pragma once
#include <stdlib.h>

#include "step.h"

namespace {

using dynamicgate::Call;
using dynamicgate::Layer;
using dynamicgate::Program;

// Memory that a thread reuses from call to call: fresh pages cost more than a small network (0.25 us for each 4 KB).
struct Workspace {
  char* base = nullptr;
  size_t size = 0, used = 0;
  ~Workspace() { free(base); }
  void reserve(size_t bytes) {
    used = 0;
    if (bytes > size) {
      free(base);
      size = bytes + bytes / 4;
      base = static_cast<char*>(aligned_alloc(64, (size + 63) / 64 * 64));
      if (!base) abort();
    }
    if (dynamicgate::poison) memset(base, 0xff, bytes);  // NaN as a float, nonsense as a count
  }
};

size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Hands out pieces of the workspace, or, without one, only counts what it would hand out.
struct Allotter {
  Workspace* from;
  size_t total = 0;
  template <class T>
  T* take(size_t count) {
    T* piece = from ? reinterpret_cast<T*>(from->base + total) : nullptr;
    total += rounded(count * sizeof(T));
    return piece;
  }
};

// The distance between rows of so many panels of floats: an odd number of cache lines, or rows would share sets of the cache.
constexpr int64_t spread(int64_t width) { return (width / kPanel | 1) * kPanel; }

struct Buffers {
  int64_t hidden_stride, value_stride, kept_stride;
  float *hidden[2], *logits[2], *value, *x, *packed, *kept;
  Openness open[2];
  Nonzero nonzero;
  int *panels, *units;
};

Buffers allot(const Call& call, int rows, Allotter& memory) {
  const Program& program = *call.program;
  int64_t width = 0, logits = 0, value = 0, blocks = 1, panels = 0, packed = 0, nonzero = 0, kept = 0, units = 0;
  for (int l = 0; l < program.layers; ++l) {
    const Layer& layer = program.layer()[l];
    width = most<int64_t>(width, layer.main.width);
    value = most<int64_t>(value, layer.value.width);
    blocks = most<int64_t>(blocks, layer.blocks);
    for (int g = 0; g < layer.gate_stages; ++g) {
      logits = most<int64_t>(logits, layer.gate[g].width);
      if (layer.gate[g].layout == dynamicgate::kCsr) packed = most<int64_t>(packed, layer.gate[g].inputs);
    }
    panels = most(width, logits) / kPanel;
    if (layer.main.layout == dynamicgate::kCsr) packed = most<int64_t>(packed, layer.main.inputs);
    if (in_inputs(layer.main)) kept = most<int64_t>(kept, spread(layer.main.inputs + kPanel - 1));
    if (in_units(layer.value)) units = most<int64_t>(units, layer.value.units);
    nonzero = most<int64_t>(nonzero, layer.main.inputs * (layer.main.skip_zeros ? rows : 1));
  }
  Buffers b = {};
  b.hidden_stride = spread(width), b.value_stride = spread(value), b.kept_stride = kept;
  for (int i = 0; i < 2; ++i) {
    b.hidden[i] = memory.take<float>(rows * b.hidden_stride);
    b.logits[i] = memory.take<float>(rows * logits);
    b.open[i].is_open = memory.take<uint8_t>(rows * blocks);
    b.open[i].factor = memory.take<float>(rows * blocks);
    b.open[i].rows_of = memory.take<uint16_t>(blocks * kChunkRows);
    b.open[i].count = memory.take<int>(blocks);
  }
  if (value) b.value = memory.take<float>(rows * b.value_stride);
  if (call.x_column_stride != 1) b.x = memory.take<float>(static_cast<int64_t>(rows) * program.inputs);
  if (packed) b.packed = memory.take<float>((rows + kPanel - 1) / kPanel * kPanel * packed);
  if (kept) b.kept = memory.take<float>(rows * kept);
  b.nonzero.value = memory.take<float>(nonzero + 1);  // one more: a zero at the end is written before it is discarded
  b.nonzero.index = memory.take<uint16_t>(nonzero + 1);
  b.nonzero.count = memory.take<int>(most<int64_t>(rows, blocks));
  b.panels = memory.take<int>(panels);
  if (units) b.units = memory.take<int>(units + 1);  // one more, as above
  return b;
}

}  // namespace
