// Many rows times panels side by side, which weights that lie input by input are copied into.
#pragma once
#include "step.h"
#include "workspace.h"

namespace {

// Inputs that are summed before an accumulator is stored: 17 KB of a panel then stay in the L1 cache, as do the inputs of
// 26 rows (784-256-10, 256 rows: 430 us with 512 inputs, 425 us with these, a difference near the noise).
constexpr int kDepth = 272;
// The same for panels side by side: more than the L1 cache holds of four, but the L2 cache is fast enough for tiles that
// use each weight six times (512-8192-512, 256 rows: 45 ms with 96 inputs, 43 ms with 128 to 264).
constexpr int kDepthBeside = kWideTiles ? 192 : kDepth;

struct Panels {
  const int* panel;
  int count, block;  // all panels are in one block of outputs
};

// Weights as floats, for tiles of many rows: each row of a panel would be widened once for every tile.
template <class Weight>
DG_INLINE void widen(const Weight* from, int64_t rows, float* to) {
  for (int64_t row = 0; row < rows; ++row) {
    Vec weight[kVectors16];
    load_row(from + row * kPanel, weight);
    for (int v = 0; v < kVectors16; ++v) store(to + row * kPanel + v * kLanes, weight[v]);
  }
}

// Rows times some inputs of the panels of a group, which are adjacent: of many rows four side by side, then two, then one.
// The inputs are in pieces of equal depth. `weight`: of the first panel; `after`: what is read after the last; `wide`: room
// for the panels side by side as floats, if they are not.
template <class Weight>
void multiply_group(const Panels& group, int rows, const float* const* a, const Weight* weight, int64_t panel_weights,
                    int64_t depth, const Pieces& pieces, float* const* c, const Weight* after, float* wide) {
  constexpr bool kNarrow = sizeof(Weight) < sizeof(float);
  constexpr int64_t kRowBytes = kPanel * sizeof(Weight), kAhead = sizeof(Weight);
  const bool several = kWideTiles && rows > kTileRows;  // fewer rows add in several phases, tile by tile
  int64_t column = static_cast<int64_t>(group.panel[0]) * kPanel;
  for (int p = 0, beside; p < group.count; p += beside, weight += beside * panel_weights, column += beside * kPanel) {
    const int left = group.count - p;
    beside = !several ? 1 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    const float* panels;
    Pieces of = pieces;
    Beside apart = {panel_weights, panel_weights * kAhead};
    if constexpr (kNarrow) {
      of.weights = depth * kPanel, apart.weights = pieces.count * of.weights;
      for (int which = 0; which < beside; ++which)
        for (int piece = 0; piece < pieces.count; ++piece)
          widen(weight + which * panel_weights + piece * pieces.weights, depth,
                wide + which * apart.weights + piece * of.weights);
      panels = wide;
    } else {
      panels = weight;
    }
    const Weight* next = left > beside ? weight + beside * panel_weights : after;
    if constexpr (kWideTiles) {
      if (beside == 4) {
        wide_tiles<4>(rows, a, panels, depth, c, column, next, kRowBytes, apart, of);
        continue;
      }
      if (beside == 2) {
        wide_tiles<2>(rows, a, panels, depth, c, column, next, kRowBytes, apart, of);
        continue;
      }
    }
    tiles<kStraight>(rows, a, panels, nullptr, depth, c, column, next, kRowBytes, of);
  }
}

// Floats that the panels side by side take.
template <class Weight>
constexpr int wide_floats() {
  if (sizeof(Weight) == sizeof(float)) return 1;
  return kPanel * (kWideTiles ? most(kDepth, 4 * kDepthBeside) : kDepth);
}

// Copies weights that lie input by input, `apart` from each other, into panels of floats.
template <class Weight>
DG_INLINE void into_panels(const Weight* from, int64_t apart, int64_t depth, int panels, float* to) {
  constexpr int64_t kAhead = 3;
  for (int64_t k = 0; k < depth; ++k, from += apart, to += kPanel)
    for (int p = 0; p < panels; ++p) {
      Vec weight[kVectors16];
      __builtin_prefetch(from + kAhead * apart + p * kPanel);
      load_row(from + p * kPanel, weight);
      for (int v = 0; v < kVectors16; ++v) store(to + p * depth * kPanel + v * kLanes, weight[v]);
    }
}

// The same for weights that lie unit by unit, sixteen units at a time: they are widened and transposed.
template <class Weight>
DG_INLINE void units_into_panels(const Weight* from, int64_t apart, int64_t depth, int panels, float* to) {
  float wide[kPanel][kPanel];
  const float* row[kPanel];
  for (int n = 0; n < kPanel; ++n) row[n] = wide[n];
  for (int p = 0; p < panels; ++p, from += kPanel * apart, to += depth * kPanel) {
    if constexpr (sizeof(Weight) == sizeof(float)) {
      for (int n = 0; n < kPanel; ++n) row[n] = from + n * apart;
      transpose_sixteen(row, static_cast<int>(depth), to);
    } else {
      for (int64_t k = 0; k < depth; k += kPanel) {
        for (int n = 0; n < kPanel; ++n) widen(from + n * apart + k, 1, wide[n]);
        transpose_sixteen(row, static_cast<int>(least<int64_t>(kPanel, depth - k)), to + k * kPanel);
      }
    }
  }
}

// Many rows times all inputs, where their weights lie input by input or unit by unit. Whole pieces of memory are copied, some inputs at a
// time for many panels, into the L2 cache: four panels at a time, 16 rows took 0.35 of the speed of weights in panels.
template <class Weight>
void accumulate_all_inputs(const Step& s, const Panels& group, int rows, const float** a, float** c, const float* begin) {
  constexpr int kTogether = 64, kFloats = 1 << 16;
  static thread_local Workspace workspace;
  workspace.reserve(kFloats * sizeof(float));
  float* held = reinterpret_cast<float*>(workspace.base);
  const bool by_unit = in_units(*s.linear);
  const int64_t apart = by_unit ? unit_weights(*s.linear) : s.linear->width, inputs = s.linear->inputs;
  for (int p = 0; p < group.count; p += kTogether) {
    const Panels some = {group.panel + p, least(kTogether, group.count - p), group.block};
    const int64_t first = static_cast<int64_t>(some.panel[0]) * kPanel;
    const Weight* weight = reinterpret_cast<const Weight*>(s.weight) + (by_unit ? first * apart : first);
    const int64_t unit = by_unit ? kPanel : 4;  // the weights of a unit are whole panels, and so are parts of them
    const int64_t most_depth = least<int64_t>(kDepthBeside, kFloats / (some.count * kPanel) / unit * unit);
    Pieces piece = kOnePiece;
    piece.start = begin;
    for (int64_t k = 0, depth; k < inputs; k += depth) {
      depth = least(most_depth, inputs - k);
      if (by_unit)
        units_into_panels(weight + k, apart, depth, some.count, held);
      else
        into_panels(weight + k * apart, apart, depth, some.count, held);
      multiply_group<float>(some, rows, a, held, depth * kPanel, depth, piece, c, held, nullptr);
      piece.start = nullptr;
      for (int m = 0; m < rows; ++m) a[m] += depth;
    }
    for (int m = 0; m < rows; ++m) a[m] -= inputs;
  }
}

}  // namespace
