// Attention of new positions to all positions in a cache, for one sequence and one head of keys and values.
#pragma once
#include <math.h>

#include "activation.h"
#include "tile.h"
#include "workspace.h"

namespace {

struct Attention {
  const float *q, *keys, *values;  // keys, values: [room][features]
  float* out;
  int64_t q_stride, out_stride;    // from one position to the next
  int64_t positions, past, padding;
  int64_t end;                     // all queries see what is before; 0: each sees what is not behind itself
  int queries_per_key;             // heads of queries that share the keys, side by side
  int features;
  float scale;
};

constexpr int kQueries = 4;     // that are run together: each key is then read once for four of them
// From so many on, their scores are a product of matrices, and keys are brought into panels first (8 layers of 8 heads of
// 64, 256 positions: scores 9.6 -> 2.7 ms).
constexpr int kManyQueries = 32;
// Floats between what is read and what is fetched for later. Few: 4 KB ahead, a core reads half as fast as 1 KB ahead (11
// and 20 GB/s of 64 MB, a Neoverse-N1).
constexpr int64_t kAhead = 256;
constexpr int64_t kFew = 16;  // values that are mixed at a time
constexpr int kSums = DG_VECTOR_BYTES == 32 ? 12 : 16;  // vectors that are summed at once

// out[m][n : n + 16 * kPanels] += sum over s of p[m][s] * values[s][n : ...].
template <int kRows, int kPanels>
DG_INLINE void mix_panels(const float* const* p, const float* values, int64_t begin, int64_t end, int features, int n,
                          float* const* out) {
  constexpr int kAll = kPanels * kVectors16;
  const int64_t ahead = kRows == 1 ? kAhead : kFew * features;  // several rows pass over the same values more than once
  Vec acc[kRows][kAll];
  DG_UNROLL for (int m = 0; m < kRows; ++m)
    DG_UNROLL for (int v = 0; v < kAll; ++v) acc[m][v] = load(out[m] + n + v * kLanes);
  for (int64_t s = begin; s < end; ++s) {
    const float* row = values + s * features + n;
    DG_UNROLL for (int panel = 0; panel < kPanels; ++panel) __builtin_prefetch(row + panel * kPanel + ahead);
    DG_UNROLL for (int v = 0; v < kAll; ++v) {
      const Vec value = load(row + v * kLanes);
      DG_UNROLL for (int m = 0; m < kRows; ++m) acc[m][v] += value * p[m][s];
    }
  }
  DG_UNROLL for (int m = 0; m < kRows; ++m)
    DG_UNROLL for (int v = 0; v < kAll; ++v) store(out[m] + n + v * kLanes, acc[m][v]);
}

// The same for all features. Few rows take several panels at once: with fewer sums, each would wait for the last, and one
// row reads its values in the order of memory.
template <int kRows>
void mix_few_values(const float* const* p, const float* values, int64_t begin, int64_t end, int features,
                    float* const* out) {
  int n = 0;
  if constexpr (4 * kRows * kVectors16 <= kSums)
    for (; n + 4 * kPanel <= features; n += 4 * kPanel) mix_panels<kRows, 4>(p, values, begin, end, features, n, out);
  if constexpr (2 * kRows * kVectors16 <= kSums)
    for (; n + 2 * kPanel <= features; n += 2 * kPanel) mix_panels<kRows, 2>(p, values, begin, end, features, n, out);
  for (; n + kPanel <= features; n += kPanel) mix_panels<kRows, 1>(p, values, begin, end, features, n, out);
  for (; n < features; ++n)
    for (int m = 0; m < kRows; ++m)
      for (int64_t s = begin; s < end; ++s) out[m][n] += values[s * features + n] * p[m][s];
}

// A few values at a time: all of their features then come from the L1 cache but once.
template <int kRows>
void mix_values(const float* const* p, const float* values, int64_t begin, int64_t end, int features, float* const* out) {
  for (int64_t s = begin; s < end; s += kFew) {
    mix_few_values<kRows>(p, values, s, least(s + kFew, end), features, out);
  }
}

template <int kRows>
DG_INLINE void mix_values_of(int rows, const float* const* p, const float* values, int64_t begin, int64_t end, int features,
                             float* const* out) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return mix_values<kRows>(p, values, begin, end, features, out);
    mix_values_of<kRows - 1>(rows, p, values, begin, end, features, out);
  }
}

float largest_of(const float* score, int64_t begin, int64_t end) {
  float top = score[begin];
  int64_t s = begin;
  if (end - begin >= 2 * kLanes) {
    Vec first = load(score + s), second = load(score + s + kLanes);
    for (s += 2 * kLanes; s + 2 * kLanes <= end; s += 2 * kLanes) {
      const Vec a = load(score + s), b = load(score + s + kLanes);
      first = a > first ? a : first, second = b > second ? b : second;
    }
    DG_UNROLL for (int i = 0; i < kLanes; ++i) top = first[i] > top ? first[i] : top;
    DG_UNROLL for (int i = 0; i < kLanes; ++i) top = second[i] > top ? second[i] : top;
  }
  for (; s < end; ++s) top = score[s] > top ? score[s] : top;
  return top;
}

// score[begin..end-1] <- their softmax. Few are added in vectors, and their sums in double. Meanwhile memory would have
// nothing to do: a line of `next` is fetched for each score.
void softmax(float* score, int64_t begin, int64_t end, float scale, const float* next) {
  const float top = largest_of(score, begin, end);
  double total = 0.0;
  int64_t s = begin;
  for (; s + kFew <= end; s += kFew) {
    DG_UNROLL for (int64_t i = 0; i < kFew; ++i) __builtin_prefetch(next + (s - begin + i) * kPanel);
    for (int64_t i = s; i < s + kFew; ++i) score[i] = exponential((score[i] - top) * scale);
    Vec part = load(score + s);
    DG_UNROLL for (int v = 1; v < kFew / kLanes; ++v) part += load(score + s + v * kLanes);
    total += sum(part);
  }
  for (; s < end; ++s) total += score[s] = exponential((score[s] - top) * scale);
  const float inverse = static_cast<float>(1.0 / total);
  for (s = begin; s < end; ++s) score[s] *= inverse;
}

// Keys as panels of sixteen, [panels][features][16]. The places after the last key get copies of it, which nothing reads.
void pack_keys(const Attention& a, int64_t seen, float* to) {
  const float* key[kPanel];
  for (int64_t first = 0; first < seen; first += kPanel, to += a.features * kPanel) {
    for (int64_t n = 0; n < kPanel; ++n) key[n] = a.keys + least(first + n, seen - 1) * a.features;
    transpose_sixteen(key, a.features, to);
  }
}

// score[m][s] = q[m] . key s for the keys from..until-1 and others of their panels.
void score_panels(const Attention& a, int rows, const float* const* q, const float* packed, int64_t from, int64_t until,
                  float* const* score) {
  constexpr int64_t kRowBytes = kPanel * sizeof(float);
  const int64_t panel_weights = a.features * kPanel, last = (until + kPanel - 1) / kPanel * kPanel;
  int64_t s = from / kPanel * kPanel;
  for (int m = 0; m < rows; ++m) memset(score[m] + s, 0, sizeof(float) * (last - s));
  if constexpr (kWideTiles) {
    const Beside beside = {panel_weights, panel_weights * static_cast<int64_t>(sizeof(float))};
    for (; s + 4 * kPanel <= last; s += 4 * kPanel) {
      const float* keys = packed + s * a.features;
      wide_tile_of<kQueries, 4>(rows, q, keys, a.features, score, s, reinterpret_cast<const char*>(keys + 4 * panel_weights),
                                kRowBytes, beside, kOnePiece);
    }
  }
  for (; s < last; s += kPanel) {
    const float* keys = packed + s * a.features;
    tile_of<kStraight, kQueries>(rows, q, keys, nullptr, a.features, score, s,
                                 reinterpret_cast<const char*>(keys + panel_weights), kRowBytes, kOnePiece);
  }
}

// The same for few queries, key by key. fetch: whether keys may be far away, so that some are fetched ahead.
void score_keys(const Attention& a, int rows, const float* const* q, int64_t from, int64_t until, bool fetch,
                float* const* score) {
  const float* key[kQueries];
  float* to[kQueries];
  for (int64_t s = from; s < until; s += kQueries) {
    const int keys = static_cast<int>(least<int64_t>(kQueries, until - s));
    for (int n = 0; n < keys; ++n) key[n] = a.keys + (s + n) * a.features;
    if (fetch)
      for (int64_t line = 0; line < kQueries * a.features; line += kPanel) __builtin_prefetch(key[0] + kAhead + line);
    for (int m = 0; m < rows; ++m) to[m] = score[m] + s;
    dots_of<kQueries, kQueries>(rows, keys, q, key, a.features, to);
  }
}

void attend(const Attention& a) {
  static thread_local Workspace workspace;
  const int64_t seen = a.past + a.positions;
  const bool pack = a.positions * a.queries_per_key >= kManyQueries;
  const int64_t panels = pack ? (seen + kPanel - 1) / kPanel : 0;
  workspace.reserve(sizeof(float) * (kQueries * rounded(seen) + panels * kPanel * a.features));
  float* const packed = reinterpret_cast<float*>(workspace.base) + kQueries * rounded(seen);
  if (pack) pack_keys(a, seen, packed);
  float *score[kQueries], *out[kQueries];
  const float *q[kQueries], *p[kQueries];
  int64_t begin[kQueries], end[kQueries];
  const int64_t count = a.positions * a.queries_per_key;
  for (int64_t first = 0; first < count; first += kQueries) {
    const int rows = static_cast<int>(least<int64_t>(kQueries, count - first));
    int64_t from = seen, until = 0, shared_from = 0, shared_until = seen;
    for (int m = 0; m < rows; ++m) {
      const int64_t t = (first + m) / a.queries_per_key, head = (first + m) % a.queries_per_key;
      score[m] = reinterpret_cast<float*>(workspace.base) + m * rounded(seen);
      p[m] = score[m];
      q[m] = a.q + t * a.q_stride + head * a.features;
      out[m] = a.out + t * a.out_stride + head * a.features;
      memset(out[m], 0, sizeof(float) * a.features);
      end[m] = a.end ? a.end : a.past + t + 1;
      begin[m] = least(a.padding, end[m] - 1);  // padding looks at itself, so that it has something to look at
      from = least(from, begin[m]), until = most(until, end[m]);
      shared_from = most(shared_from, begin[m]), shared_until = least(shared_until, end[m]);
    }
    if (pack)
      score_panels(a, rows, q, packed, from, until, score);
    else
      score_keys(a, rows, q, from, until, !first, score);  // only the first queries find the keys in memory
    for (int m = 0; m < rows; ++m)
      softmax(score[m], begin[m], end[m], a.scale, a.values + begin[m] * a.features + m * (end[m] - begin[m]) * kPanel);
    // What only some of the queries see is added for each by itself: a later value must not touch an earlier query.
    if (shared_from < shared_until) mix_values_of<kQueries>(rows, p, a.values, shared_from, shared_until, a.features, out);
    for (int m = 0; m < rows; ++m) {
      const bool shared = shared_from < shared_until;
      mix_values<1>(p + m, a.values, begin[m], shared ? shared_from : end[m], a.features, out + m);
      if (shared) mix_values<1>(p + m, a.values, shared_until, end[m], a.features, out + m);
    }
  }
}

}  // namespace
