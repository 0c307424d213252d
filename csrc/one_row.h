// One row times panels, as one more token of one sequence is: all the time goes into reading weights.
#pragma once
#include "step.h"

namespace {

// One row times several panels: panel p has its weights at w[p] and its sums at c[p], which begin with those at start[p].
// Each panel is read at its own place in memory, which is faster than one after the other (13 and 11.5 GB/s, a Xeon with
// AVX-512), and what is read there next, at after[p], is fetched ahead. The same sums for any number of panels.
constexpr int64_t kRowAhead = 1024;  // bytes

template <int kPanels, class Weight>
DG_NOINLINE void row_tile(const float* a, const Weight* const* w, const Weight* const* after, int64_t depth,
                          const float* const* start, float* const* c) {
  constexpr int kPhases = 4;
  constexpr int64_t kRowBytes = dynamicgate::kPanel * sizeof(Weight), kLine = 64;
  const int64_t turn = most<int64_t>(0, depth - kRowAhead / kRowBytes) / kPhases * kPhases;
  Vec acc[kPanels][kPhases][kVectors16];
  const char *row[kPanels], *soon[kPanels];
  DG_UNROLL for (int p = 0; p < kPanels; ++p) {
    load_row(start[p], acc[p][0]);
    DG_UNROLL for (int phase = 1; phase < kPhases; ++phase)
      DG_UNROLL for (int v = 0; v < kVectors16; ++v) acc[p][phase][v] = Vec{};
    row[p] = reinterpret_cast<const char*>(w[p]), soon[p] = row[p] + (depth - turn) * kRowBytes;
  }
  const auto add = [&](int p, int phase, float value) {
    Vec weight[kVectors16];
    load_row(reinterpret_cast<const Weight*>(row[p]) + phase * dynamicgate::kPanel, weight);
    DG_UNROLL for (int v = 0; v < kVectors16; ++v) acc[p][phase][v] += weight[v] * value;
  };
  int64_t k = 0;
  const auto steps = [&](int64_t until) {
    for (; k + kPhases <= until; k += kPhases)
      DG_UNROLL for (int p = 0; p < kPanels; ++p) {
        DG_UNROLL for (int64_t line = 0; line < kPhases * kRowBytes; line += kLine) __builtin_prefetch(soon[p] + line);
        DG_UNROLL for (int phase = 0; phase < kPhases; ++phase) add(p, phase, a[k + phase]);
        row[p] += kPhases * kRowBytes, soon[p] += kPhases * kRowBytes;
      }
  };
  steps(turn);
  DG_UNROLL for (int p = 0; p < kPanels; ++p) soon[p] = reinterpret_cast<const char*>(after[p]);
  steps(depth);
  for (; k < depth; ++k)
    DG_UNROLL for (int p = 0; p < kPanels; ++p) add(p, 0, a[k]), row[p] += kRowBytes;
  DG_UNROLL for (int p = 0; p < kPanels; ++p)
    DG_UNROLL for (int v = 0; v < kVectors16; ++v)
      store(c[p] + v * kLanes, (acc[p][0][v] + acc[p][1][v]) + (acc[p][2][v] + acc[p][3][v]));
}

// Some of the listed panels, `kPanels` at a time, and `apart` of the list between those.
template <int kPanels, class Weight>
void row_times_panels(const float* a, const Weight* weight, int64_t panel_weights, const Weight* then, const int* panels,
                      int apart, int64_t depth, const float* begin, float* out) {
  for (int i = 0; i < apart; ++i) {
    const Weight *w[kPanels], *after[kPanels];
    const float* start[kPanels];
    float* c[kPanels];
    DG_UNROLL for (int p = 0; p < kPanels; ++p) {
      const int* at = panels + p * apart + i;
      w[p] = weight + *at * panel_weights, start[p] = begin + *at * kPanel, c[p] = out + *at * kPanel;
      after[p] = i + 1 < apart ? weight + at[1] * panel_weights : then + panels[p * apart] * panel_weights;
    }
    row_tile<kPanels>(a, w, after, depth, start, c);
  }
}

// One row times the listed panels of all open blocks of inputs, where one register holds a row of a panel. The list is read
// at four places at once, then what is left of it at two, then at one.
template <class Weight>
void run_row(const Step& s, const int* panels, int count, const float* begin) {
  const Weight* weights = reinterpret_cast<const Weight*>(s.weight);
  const auto weights_of = [&](int block) {
    return weights + static_cast<int64_t>(block) * s.in_open.block * s.linear->width;
  };
  for (int b = 0, next; b < s.in_open.blocks; b = next) {
    for (next = b + 1; next < s.in_open.blocks && !s.in_open.has(0, next);) ++next;
    if (!s.in_open.has(0, b)) continue;
    const float* a = s.in + static_cast<int64_t>(b) * s.in_open.block_width;
    const int64_t depth = s.units(b), panel_weights = depth * kPanel;
    const Weight *weight = weights_of(b), *then = weights_of(next < s.in_open.blocks ? next : b);
    const float* start = begin ? begin : s.out;
    const int four = count / 4, two = count % 4 / 2, done = 4 * four;
    row_times_panels<4>(a, weight, panel_weights, then, panels, four, depth, start, s.out);
    row_times_panels<2>(a, weight, panel_weights, then, panels + done, two, depth, start, s.out);
    row_times_panels<1>(a, weight, panel_weights, then, panels + done + 2 * two, count % 2, depth, start, s.out);
  }
}

}  // namespace
