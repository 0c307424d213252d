// The layouts in panels and in vectors: sixteen outputs at a time.
#pragma once
#include "by_input.h"
#include "one_row.h"
#include "side_by_side.h"

namespace {

// The rows that need the product of one block of inputs with one block of outputs, as pointers for the micro-kernels.
DG_INLINE int gather(const Step& s, int in_block, int out_block, const float** a, float** c) {
  const Openness& list = s.in_open.is_open ? s.in_open : s.out_open;
  const int block = s.in_open.is_open ? in_block : out_block;
  const int64_t offset = static_cast<int64_t>(in_block) * s.in_open.block_width;
  int found = 0;
  for (int i = 0, n = list.rows_in(block, s.rows); i < n; ++i) {
    const int row = list.row(block, i);
    if (s.in_open.is_open && !s.out_open.has(row, out_block)) continue;
    a[found] = s.in + row * s.in_stride + offset;
    c[found++] = s.out + row * s.out_stride;
  }
  return found;
}

// Single open inputs (unit gates): their weights are whole rows of the transposed matrix. Eight are added to c at once.
void accumulate_units(const Step& s, const Panels& group) {
  const int64_t begin = static_cast<int64_t>(group.panel[0]) * kPanel;
  const int64_t end = static_cast<int64_t>(group.panel[group.count - 1] + 1) * kPanel;  // the panels of a block are adjacent
  for (int row = 0; row < s.rows; ++row) {
    if (!s.out_open.has(row, group.block)) continue;
    float value[8];
    const float* weight[8];
    int n = 0;
    float* c = s.out + row * s.out_stride;
    for (int i = 0; i < s.in_open.blocks; ++i) {
      if (!s.in_open.is_open[row * s.in_open.blocks + i]) continue;
      value[n] = s.in[row * s.in_stride + static_cast<int64_t>(i) * s.in_open.block_width];
      weight[n++] = s.weight + static_cast<int64_t>(i) * s.linear->width;
      if (n == 8) columns<8>(value, weight, begin, end, c), n = 0;
    }
    for (int i = 0; i < n; ++i) columns<1>(value + i, weight + i, begin, end, c);
  }
}

// One row times one panel of vectors, skipping the vectors whose input is zero.
void skip_vectors(const float* a, const float* w, const uint16_t* index, int count, float* const* c, int64_t column) {
  constexpr int kAtOnce = 256;
  float value[kAtOnce];
  uint16_t at[kAtOnce];
  const float* values = value;
  for (int first = 0; first < count; first += kAtOnce, w += kAtOnce * kPanel) {
    int found = 0;
    for (int k = 0; k < least(kAtOnce, count - first); ++k) {
      value[found] = a[index[first + k]];
      at[found] = static_cast<uint16_t>(k);
      found += value[found] != 0.0f;
    }
    for (int k = 0; k < found; ++k) __builtin_prefetch(w + at[k] * kPanel);  // the hardware cannot predict these addresses
    tile<1, kIndexedWeight>(&values, w, at, found, c, column, reinterpret_cast<const char*>(w), 0);
  }
}

// One block of inputs times the panels of one block of outputs. begin: `start` of `Pieces`.
template <class Weight>
void accumulate_panels(const Step& s, int in_block, const Panels& group, int rows, const float** a, float** c,
                       const float* begin) {
  const int units = s.units(in_block);
  if (in_inputs(*s.linear) || in_units(*s.linear)) return accumulate_all_inputs<Weight>(s, group, rows, a, c, begin);
  const Weight* weight = reinterpret_cast<const Weight*>(s.weight) +
                         static_cast<int64_t>(in_block) * s.in_open.block * s.linear->width;
  const int64_t panel_weights = static_cast<int64_t>(units) * kPanel;
  if (s.skip) {
    for (int m = 0; m < rows; ++m) {
      const int64_t row = (c[m] - s.out) / s.out_stride;
      const int64_t from = row * s.linear->inputs + static_cast<int64_t>(in_block) * s.in_open.block;
      const float* values = s.nonzero.value + from;
      for (int p = 0; p < group.count; ++p) {
        const Weight* panel = weight + group.panel[p] * panel_weights;
        const char* soon = reinterpret_cast<const char*>(p + 1 < group.count ? panel + panel_weights : panel);
        tile<1, kIndexedWeight>(&values, panel, s.nonzero.index + from, s.nonzero.count[row * s.in_open.blocks + in_block],
                                c + m, group.panel[p] * kPanel, soon, 0);
      }
    }
    return;
  }
  Pieces piece = kOnePiece;
  piece.start = begin;
  if (rows <= kTileRows) {  // one tile reads the panel, once
    for (int p = 0; p < group.count; ++p) {
      const Weight* panel = weight + group.panel[p] * panel_weights;
      const Weight* next = p + 1 < group.count ? panel + panel_weights : panel;
      tiles<kStraight>(rows, a, panel, nullptr, units, c, group.panel[p] * kPanel, next, kPanel * sizeof(Weight), piece);
    }
    return;
  }
  alignas(64) float wide[wide_floats<Weight>()];
  const int most_depth = group.count > 1 ? kDepthBeside : kDepth;
  const int parts = (units + most_depth - 1) / most_depth;
  const int depth = ((units + parts - 1) / parts + 3) / 4 * 4;  // parts of nearly equal length
  for (int k = 0; k < units; k += depth) {
    const Weight* first = weight + group.panel[0] * panel_weights + static_cast<int64_t>(k) * kPanel;
    multiply_group(group, rows, a, first, panel_weights, least(depth, units - k), piece, c, first + depth * kPanel, wide);
    piece.start = nullptr;
    if (k + depth < units)
      for (int m = 0; m < rows; ++m) a[m] += depth;
  }
}

void accumulate(const Step& s, int in_block, const Panels& group, const float* begin = nullptr) {
  const float* a[kChunkRows];
  float* c[kChunkRows];
  const int rows = gather(s, in_block, group.block, a, c);
  if (!rows) return;
  const int all_panels = s.linear->width / kPanel;
  if (s.linear->layout == dynamicgate::kVectors || s.linear->layout == dynamicgate::kColumns) {
    const int32_t* start = s.words + s.linear->index + in_block * all_panels;
    const uint16_t* index = reinterpret_cast<const uint16_t*>(
        s.words + s.linear->index + s.in_open.blocks * all_panels + 1);
    for (int p = 0; p < group.count; ++p) {
      const int panel = group.panel[p], depth = start[panel + 1] - start[panel];
      const float* weight = s.weight + static_cast<int64_t>(start[panel]) * kPanel;
      if (s.skip)
        skip_vectors(a[0], weight, index + start[panel], depth, c, panel * kPanel);
      else
        tiles<kIndexedInput>(rows, a, weight, index + start[panel], depth, c, panel * kPanel,
                             weight + static_cast<int64_t>(depth) * kPanel, kPanel * sizeof(float));
    }
    return;
  }
  if (in_halves(*s.linear)) return accumulate_panels<Half>(s, in_block, group, rows, a, c, begin);
  if (in_bytes(*s.linear)) return accumulate_panels<Byte>(s, in_block, group, rows, a, c, begin);
  accumulate_panels<float>(s, in_block, group, rows, a, c, begin);
}

// The same for blocks of inputs that are all open for all rows, as many at once as a deep block has inputs: a tile then
// stores its sums as rarely as in a layer that is not gated (512-8192-512, 256 rows, blocks of 64: 160 -> 145 ms).
template <class Weight>
void accumulate_whole(const Step& s, const Panels& group) {
  const float* a[kChunkRows];
  float* c[kChunkRows];
  const int rows = gather(s, 0, group.block, a, c), block = s.in_open.block;
  if (!rows) return;
  const Weight* weight = reinterpret_cast<const Weight*>(s.weight);
  const int64_t panel_weights = static_cast<int64_t>(block) * kPanel, apart = static_cast<int64_t>(block) * s.linear->width;
  const int full = s.linear->inputs / block, at_once = most(1, kDepthBeside / block);
  alignas(64) float wide[wide_floats<Weight>()];
  for (int first = 0; first < full; first += at_once) {
    const int64_t ahead = apart * static_cast<int64_t>(sizeof(Weight));
    const Pieces pieces = {least(at_once, full - first), s.in_open.block_width, apart, ahead, nullptr};
    const Weight* panel = weight + first * apart + group.panel[0] * panel_weights;
    multiply_group(group, rows, a, panel, panel_weights, block, pieces, c, panel + at_once * apart, wide);
    for (int m = 0; m < rows; ++m) a[m] += pieces.count * pieces.inputs;
  }
  if (full < s.in_open.blocks) accumulate(s, full, group);
}

// Vectors grouped by input: an input that is not zero adds its vectors to the open panels of its row. Nothing else is read.
void accumulate_inputs(const Step& s, int first, int last) {
  const int32_t* start = s.words + s.linear->index;
  const uint16_t* panel_of = reinterpret_cast<const uint16_t*>(start + s.linear->inputs + 1);
  const int panels_of_block = s.out_open.block_width / kPanel;
  for (int row = 0; row < s.rows; ++row) {
    const int64_t from = static_cast<int64_t>(row) * s.linear->inputs;
    const float* value = s.nonzero.value + from;
    const uint16_t* input = s.nonzero.index + from;
    const int count = s.nonzero.count[row];
    float* out = s.out + row * s.out_stride;
    for (int i = 0; i < count; ++i) {
      if (i + 2 < count)
        for (int v = start[input[i + 2]]; v < start[input[i + 2] + 1]; ++v)
          __builtin_prefetch(s.weight + static_cast<int64_t>(v) * kPanel);
      int block = 0, until = s.out_open.is_open ? panels_of_block : last + 1;
      bool open = s.out_open.has(row, 0);
      for (int v = start[input[i]]; v < start[input[i] + 1]; ++v) {
        const int panel = panel_of[v];
        if (panel < first || panel > last) continue;
        while (panel >= until) open = s.out_open.has(row, ++block), until += panels_of_block;
        if (!open) continue;
        const float* weight = s.weight + static_cast<int64_t>(v) * kPanel;
        float* c = out + panel * kPanel;
        for (int lane = 0; lane < kPanel; lane += kLanes)
          store(c + lane, load(c + lane) + load(weight + lane) * value[i]);
      }
    }
  }
}

void start(const Step& s, const Panels& group) {
  for (int i = 0, n = s.out_open.rows_in(group.block, s.rows); i < n; ++i) {
    float* c = s.out + s.out_open.row(group.block, i) * s.out_stride;
    for (int p = 0; p < group.count; ++p)
      if (in_bytes(*s.linear))
        memset(c + group.panel[p] * kPanel, 0, kPanel * sizeof(float));
      else
        memcpy(c + group.panel[p] * kPanel, s.bias + group.panel[p] * kPanel, kPanel * sizeof(float));
  }
}

// Byte panels: sums of whole numbers times inputs become outputs.
DG_INLINE void scale_sums(const Step& s, float* c, int first, int last) {
  const float* scale = s.bias + s.linear->width;
  for (int n = first * kPanel; n < (last + 1) * kPanel; n += kLanes)
    store(c + n, load(c + n) * load(scale + n) + load(s.bias + n));
}

void finish(const Step& s, const Panels& group) {
  for (int i = 0, n = s.out_open.rows_in(group.block, s.rows); i < n; ++i) {
    const int row = s.out_open.row(group.block, i);
    const float factor = s.out_open.factor ? s.out_open.factor[row * s.out_open.blocks + group.block] : 1.0f;
    const int first = group.panel[0], last = group.panel[group.count - 1];  // the panels of a block are adjacent
    if (in_bytes(*s.linear)) scale_sums(s, s.out + row * s.out_stride, first, last);
    activate(s.linear->activation, s.out + row * s.out_stride + first * kPanel, (last + 1 - first) * kPanel, factor);
  }
}

// The panels and vectors layouts, for the panels begin..end-1 of the step's list.
void run_panels(const Step& s, int begin, int end) {
  if (begin == end) return;
  const auto each_group = [&](auto&& visit) {
    for (int p = begin, next; p < end; p = next) {
      const int block = s.panel_block(s.panels[p]);
      for (next = p + 1; next < end && s.panel_block(s.panels[next]) == block;) ++next;
      visit(Panels{s.panels + p, next - p, block});
    }
  };
  const bool by_input = s.linear->layout == dynamicgate::kVectors && s.linear->skip_zeros;
  // The first tiles may begin with the biases, which spares a pass over outputs that are not in a cache yet.
  const bool dense = in_panels(*s.linear) || in_inputs(*s.linear) || in_units(*s.linear);
  const bool biases = !s.skip && !in_bytes(*s.linear) && dense;
  const bool single_inputs = s.in_open.is_open && s.in_open.block == 1 && s.linear->layout == dynamicgate::kPanels;
  if (in_inputs(*s.linear) && s.rows <= kTileRows) {
    each_group([&](const Panels& g) { start(s, g); });
    run_inputs(s, s.panels[begin], s.panels[end - 1] + 1);
    return each_group([&](const Panels& g) { finish(s, g); });
  }
  if constexpr (kWideTiles)
    if (s.rows == 1 && in_panels(*s.linear) && !s.skip && !single_inputs) {
      const float* first = biases && !s.in_open.is_open ? s.bias : nullptr;
      if (!first) each_group([&](const Panels& g) { start(s, g); });
      switch (s.linear->layout) {
        case dynamicgate::kHalfPanels: run_row<Half>(s, s.panels + begin, end - begin, first); break;
        case dynamicgate::kBytePanels: run_row<Byte>(s, s.panels + begin, end - begin, first); break;
        default: run_row<float>(s, s.panels + begin, end - begin, first);
      }
      return each_group([&](const Panels& g) { finish(s, g); });
    }
  if (!s.in_open.is_open && !by_input) {
    return each_group([&](const Panels& g) {
      if (!biases) start(s, g);
      accumulate(s, 0, g, biases ? s.bias : nullptr);
      finish(s, g);
    });
  }
  each_group([&](const Panels& g) { start(s, g); });
  if (by_input)
    accumulate_inputs(s, s.panels[begin], s.panels[end - 1]);
  else if (s.in_open.block == 1 && s.linear->layout == dynamicgate::kPanels)
    each_group([&](const Panels& g) { accumulate_units(s, g); });
  else if (s.in_open.whole && in_panels(*s.linear) && !s.skip && s.rows > kTileRows && s.in_open.block <= kDepthBeside)
    each_group([&](const Panels& g) {
      switch (s.linear->layout) {
        case dynamicgate::kHalfPanels: return accumulate_whole<Half>(s, g);
        case dynamicgate::kBytePanels: return accumulate_whole<Byte>(s, g);
        default: return accumulate_whole<float>(s, g);
      }
    });
  else
    for (int i = 0; i < s.in_open.blocks; ++i)
      if (s.in_open.count[i]) each_group([&](const Panels& g) { accumulate(s, i, g); });
  each_group([&](const Panels& g) { finish(s, g); });
}

}  // namespace
