// The micro-kernels. All other files decide what these work on.
#pragma once
#include "vector.h"

namespace {

enum Walk {
  kStraight,       // a[k]        * w[k]
  kIndexedInput,   // a[index[k]] * w[k]:        16x1 vectors
  kIndexedWeight,  // a[k]        * w[index[k]]: inputs without their zeros
};

// The weights of a panel for several blocks of inputs: pieces of equal depth, so many inputs and so many weights apart.
struct Pieces {
  int count;
  int64_t inputs, weights;
  int64_t ahead;       // bytes between what is prefetched for one piece and for the next
  const float* start;  // what is added to: a number for each output, the same for all rows; null: what c holds
};
constexpr Pieces kOnePiece = {1, 0, 0, 0, nullptr};

// c[m][0:16] += sum over k of a[m][k] * w[k][0:16], rows given by pointers (indirect GEMM: no gather, no scatter).
// Prefetches the weights that are needed next: from `soon` on, `stride` bytes for each step, or, where weights are taken
// by index, those with the same indices at `soon`.
// With few rows there are too few accumulators to hide the latency of a multiply-add; then there are `kPhases` partial
// sums over k. Only a straight walk has several pieces.
template <int kRows, Walk kWalk, class Weight>
DG_NOINLINE void tile(const float* const* a, const Weight* w, const uint16_t* index, int64_t depth, float* const* c,
                      int64_t column, const char* soon, int64_t stride, const Pieces& pieces = kOnePiece) {
  constexpr int kPhases = kRows * kVectors16 >= 8 ? 1 : 8 / (kRows * kVectors16);
  constexpr bool kByLane = kRows <= kLaneRows && kWalk != kIndexedInput;
  constexpr int kSteps = kByLane ? kLanes : kPhases;
  Vec acc[kPhases][kRows][kVectors16];
  // The next panel uses the same rows, and hardware cannot prefetch so many streams (S3, 1024 rows: 66 -> 61 ms).
  DG_UNROLL for (int m = 0; m < kRows; ++m) __builtin_prefetch(c[m] + column + dynamicgate::kPanel, 1);
  DG_UNROLL for (int m = 0; m < kRows; ++m)
    DG_UNROLL for (int v = 0; v < kVectors16; ++v) {
      acc[0][m][v] = load((pieces.start ? pieces.start : c[m]) + column + v * kLanes);
      DG_UNROLL for (int phase = 1; phase < kPhases; ++phase) acc[phase][m][v] = Vec{};
    }
  for (int piece = 0; piece < (kWalk == kStraight ? pieces.count : 1); ++piece, w += pieces.weights) {
    const float* in[kRows];
    DG_UNROLL for (int m = 0; m < kRows; ++m) in[m] = a[m] + piece * pieces.inputs;
    const char* ahead = soon + piece * pieces.ahead;
    int64_t k = 0;
    for (; k + kSteps <= depth; k += kSteps) {
      Vec values[kRows];
      if constexpr (kByLane)
        DG_UNROLL for (int m = 0; m < kRows; ++m) values[m] = load(in[m] + k);
      DG_UNROLL for (int step = 0; step < kSteps; ++step) {
        const int64_t from = kWalk == kStraight ? k + step : index[k + step];
        const Weight* row = w + (kWalk == kIndexedWeight ? from : k + step) * dynamicgate::kPanel;
        __builtin_prefetch(kWalk == kIndexedWeight ? soon + from * dynamicgate::kPanel * sizeof(Weight) : ahead);
        if (kWalk != kIndexedWeight) ahead += stride;
        Vec weight[kVectors16];
        load_row(row, weight);
        DG_UNROLL for (int m = 0; m < kRows; ++m) {
          float value;
          if constexpr (kByLane)
            value = values[m][step];
          else
            value = in[m][kWalk == kIndexedInput ? from : k + step];
          DG_UNROLL for (int v = 0; v < kVectors16; ++v) acc[step % kPhases][m][v] += weight[v] * value;
        }
      }
    }
    for (; k < depth; ++k) {
      const int64_t from = kWalk == kStraight ? k : index[k];
      const Weight* row = w + (kWalk == kIndexedWeight ? from : k) * dynamicgate::kPanel;
      Vec weight[kVectors16];
      load_row(row, weight);
      DG_UNROLL for (int m = 0; m < kRows; ++m)
        DG_UNROLL for (int v = 0; v < kVectors16; ++v) acc[0][m][v] += weight[v] * in[m][kWalk == kIndexedInput ? from : k];
    }
  }
  DG_UNROLL for (int m = 0; m < kRows; ++m)
    DG_UNROLL for (int v = 0; v < kVectors16; ++v) {
      DG_UNROLL for (int phase = 1; phase < kPhases; ++phase) acc[0][m][v] += acc[phase][m][v];
      store(c[m] + column + v * kLanes, acc[0][m][v]);
    }
}

template <Walk kWalk, int kRows, class Weight>
DG_INLINE void tile_of(int rows, const float* const* a, const Weight* w, const uint16_t* index, int64_t depth,
                       float* const* c, int64_t column, const char* soon, int64_t stride, const Pieces& pieces) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return tile<kRows, kWalk>(a, w, index, depth, c, column, soon, stride, pieces);
    tile_of<kWalk, kRows - 1>(rows, a, w, index, depth, c, column, soon, stride, pieces);
  }
}

// The same for any number of rows, in tiles of nearly equal height: 13 rows are 5 + 4 + 4, not 5 + 5 + 3. Each tile
// prefetches its part of the weights at `next`, where a row of a panel takes so many bytes; all at once, the cache misses
// would queue.
template <Walk kWalk, class Weight>
void tiles(int rows, const float* const* a, const Weight* w, const uint16_t* index, int64_t depth, float* const* c,
           int64_t column, const void* next, int64_t row_bytes, const Pieces& pieces = kOnePiece) {
  constexpr int64_t kNear = 16 * dynamicgate::kPanel, kRowBytes = dynamicgate::kPanel * sizeof(Weight);
  if (rows <= kTileRows)
    return tile_of<kWalk, kTileRows>(rows, a, w, index, depth, c, column, reinterpret_cast<const char*>(w + kNear), kRowBytes,
                                     pieces);
  const int count = (rows + kTileRows - 1) / kTileRows;
  const int64_t stride = (row_bytes / 4 + count - 1) / count * 4;
  const char* soon = static_cast<const char*>(next);
  for (int left = count; left > 0; --left) {
    const int height = (rows + left - 1) / left;
    tile_of<kWalk, kTileRows>(height, a, w, index, depth, c, column, soon, stride, pieces);
    a += height, c += height, rows -= height, soon += depth * stride;
  }
}

// Several panels of weights side by side: how many weights are between them, and how many bytes between what is prefetched.
struct Beside {
  int64_t weights, ahead;
};

// `tile` for several panels of outputs, from the one at `column` on, where one register holds a row of a panel. With one,
// each multiply-add needs an input of its own from memory, and a processor that decodes four instructions at a time decodes
// little else. Every output adds in the same order as in a tile of more than seven rows of one panel, so that the same bits
// come out.
template <int kRows, int kPanels>
DG_NOINLINE void wide_tile(const float* const* a, const float* w, int64_t depth, float* const* c, int64_t column,
                           const char* soon, int64_t stride, const Beside& beside, const Pieces& pieces) {
  Vec acc[kPanels][kRows];
  DG_UNROLL for (int m = 0; m < kRows; ++m) {
    const float* start = pieces.start ? pieces.start : c[m];
    DG_UNROLL for (int p = 0; p < kPanels; ++p) acc[p][m] = load(start + column + p * dynamicgate::kPanel);
    DG_UNROLL for (int p = 0; p < kPanels; ++p) __builtin_prefetch(c[m] + column + (kPanels + p) * dynamicgate::kPanel, 1);
  }
  for (int piece = 0; piece < pieces.count; ++piece, w += pieces.weights) {
    const float* in[kRows];
    DG_UNROLL for (int m = 0; m < kRows; ++m) in[m] = a[m] + piece * pieces.inputs;
    const char* ahead = soon + piece * pieces.ahead;
    const float* row = w;
    const auto step = [&](int64_t k, int64_t at) {
      Vec weight[kPanels];
      DG_UNROLL for (int p = 0; p < kPanels; ++p) weight[p] = load(row + p * beside.weights + at * dynamicgate::kPanel);
      DG_UNROLL for (int m = 0; m < kRows; ++m) {
        const Vec value = in[m][k + at] - Vec{};
        DG_UNROLL for (int p = 0; p < kPanels; ++p) acc[p][m] += weight[p] * value;
      }
    };
    int64_t k = 0;
    for (; k + kPanels <= depth; k += kPanels, row += kPanels * dynamicgate::kPanel, ahead += kPanels * stride)
      DG_UNROLL for (int p = 0; p < kPanels; ++p) {
        __builtin_prefetch(ahead + p * beside.ahead);
        step(k, p);
      }
    for (; k < depth; ++k, row += dynamicgate::kPanel) step(k, 0);
  }
  DG_UNROLL for (int m = 0; m < kRows; ++m)
    DG_UNROLL for (int p = 0; p < kPanels; ++p) store(c[m] + column + p * dynamicgate::kPanel, acc[p][m]);
}

template <int kRows, int kPanels>
DG_INLINE void wide_tile_of(int rows, const float* const* a, const float* w, int64_t depth, float* const* c, int64_t column,
                            const char* soon, int64_t stride, const Beside& beside, const Pieces& pieces) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return wide_tile<kRows, kPanels>(a, w, depth, c, column, soon, stride, beside, pieces);
    wide_tile_of<kRows - 1, kPanels>(rows, a, w, depth, c, column, soon, stride, beside, pieces);
  }
}

// `tiles` for several panels and many rows.
template <int kPanels>
void wide_tiles(int rows, const float* const* a, const float* w, int64_t depth, float* const* c, int64_t column,
                const void* next, int64_t row_bytes, const Beside& beside, const Pieces& pieces) {
  constexpr int kMost = kPanels == 2 ? 8 : 6;  // sums, a row of weights and an input in 32 registers
  const int count = (rows + kMost - 1) / kMost;
  const int64_t stride = (row_bytes / 4 + count - 1) / count * 4;
  const char* soon = static_cast<const char*>(next);
  for (int left = count; left > 0; --left) {
    const int height = (rows + left - 1) / left;
    wide_tile_of<kMost, kPanels>(height, a, w, depth, c, column, soon, stride, beside, pieces);
    a += height, c += height, rows -= height, soon += depth * stride;
  }
}

constexpr int kDotAhead = 128;  // floats: a gate is the first to read x, which is often not in the cache

// c[m][n] = a[m] . w[n] for a few rows and a few outputs, both given by pointers to contiguous rows.
template <int kRows, int kOutputs>
DG_NOINLINE void dots(const float* const* a, const float* const* w, int64_t depth, float* const* c) {
  constexpr int kPhases = kRows * kOutputs >= 8 ? 1 : 8 / (kRows * kOutputs);
  constexpr int kSteps = most(4, kPhases);
  Vec acc[kPhases][kRows][kOutputs];
  DG_UNROLL for (int phase = 0; phase < kPhases; ++phase)
    DG_UNROLL for (int m = 0; m < kRows; ++m)
      DG_UNROLL for (int n = 0; n < kOutputs; ++n) acc[phase][m][n] = Vec{};
  int64_t k = 0;
  for (; k + kSteps * kLanes <= depth; k += kSteps * kLanes) {
    DG_UNROLL for (int m = 0; m < kRows; ++m)
      DG_UNROLL for (int line = 0; line < kSteps * kLanes; line += dynamicgate::kPanel)
        __builtin_prefetch(a[m] + k + line + kDotAhead);
    // Not unrolled further: gcc would shuffle accumulators between registers (784-4, 256 rows: 52 -> 73 us).
    DG_ROLLED for (int64_t step = k; step < k + kSteps * kLanes; step += kPhases * kLanes)
      DG_UNROLL for (int phase = 0; phase < kPhases; ++phase) {
        Vec weight[kOutputs];
        DG_UNROLL for (int n = 0; n < kOutputs; ++n) weight[n] = load(w[n] + step + phase * kLanes);
        DG_UNROLL for (int m = 0; m < kRows; ++m) {
          const Vec value = load(a[m] + step + phase * kLanes);
          DG_UNROLL for (int n = 0; n < kOutputs; ++n) acc[phase][m][n] += weight[n] * value;
        }
      }
  }
  DG_UNROLL for (int m = 0; m < kRows; ++m)
    DG_UNROLL for (int n = 0; n < kOutputs; ++n) {
      DG_UNROLL for (int phase = 1; phase < kPhases; ++phase) acc[0][m][n] += acc[phase][m][n];
      c[m][n] = sum(acc[0][m][n]);
    }
  if (k == depth) return;
  for (int m = 0; m < kRows; ++m)
    for (int n = 0; n < kOutputs; ++n)
      for (int64_t rest = k; rest < depth; ++rest) c[m][n] += a[m][rest] * w[n][rest];
}

template <int kRows, int kOutputs>
DG_INLINE void dots_of(int rows, int outputs, const float* const* a, const float* const* w, int64_t depth,
                       float* const* c) {
  if constexpr (kRows > 0 && kOutputs > 0) {
    if (rows != kRows) return dots_of<kRows - 1, kOutputs>(rows, outputs, a, w, depth, c);
    if (outputs != kOutputs) return dots_of<kRows, kOutputs - 1>(rows, outputs, a, w, depth, c);
    dots<kRows, kOutputs>(a, w, depth, c);
  }
}

// c[0:width] += a[0] * w[0][0:width] + a[1] * w[1][0:width] + ...: the transposed product for single open inputs.
template <int kInputs>
void columns(const float* a, const float* const* w, int64_t begin, int64_t end, float* c) {
  for (int64_t n = begin; n < end; n += kLanes) {
    Vec acc = load(c + n);
    for (int k = 0; k < kInputs; ++k) acc += load(w[k] + n) * a[k];
    store(c + n, acc);
  }
}

}  // namespace
