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
  int queries_per_key;             // heads of queries that share the keys, side by side
  int features;
  float scale;
};

constexpr int kQueries = 4;     // that are run together: each key is then read once for four of them
// Floats between what is read and what is fetched for later. Few: 4 KB ahead, a core reads half as fast as 1 KB ahead (11
// and 20 GB/s of 64 MB, a Neoverse-N1).
constexpr int64_t kAhead = 256;
constexpr int64_t kFew = 16;  // values that are mixed at a time

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
  if constexpr (kRows == 1)
    for (; n + 4 * kPanel <= features; n += 4 * kPanel) mix_panels<kRows, 4>(p, values, begin, end, features, n, out);
  if constexpr (kRows <= 2)
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

// score[begin..end-1] <- their softmax. In lanes: maxima and sums in a chain would each wait for the one before.
void softmax(float* score, int64_t begin, int64_t end, float scale) {
  constexpr int kAtOnce = 8;
  float largest[kAtOnce];
  double total[kAtOnce] = {};
  for (int i = 0; i < kAtOnce; ++i) largest[i] = score[begin];
  int64_t s = begin;
  for (; s + kAtOnce <= end; s += kAtOnce)
    for (int i = 0; i < kAtOnce; ++i) largest[i] = score[s + i] > largest[i] ? score[s + i] : largest[i];
  for (; s < end; ++s) largest[0] = score[s] > largest[0] ? score[s] : largest[0];
  for (int i = 1; i < kAtOnce; ++i) largest[0] = largest[i] > largest[0] ? largest[i] : largest[0];
  const float top = largest[0];
  for (s = begin; s < end; ++s) score[s] = exponential((score[s] - top) * scale);
  for (s = begin; s + kAtOnce <= end; s += kAtOnce)
    for (int i = 0; i < kAtOnce; ++i) total[i] += score[s + i];
  for (; s < end; ++s) total[0] += score[s];
  for (int i = 1; i < kAtOnce; ++i) total[0] += total[i];
  const float inverse = static_cast<float>(1.0 / total[0]);
  for (s = begin; s < end; ++s) score[s] *= inverse;
}

void attend(const Attention& a) {
  static thread_local Workspace workspace;
  const int64_t seen = a.past + a.positions;
  workspace.reserve(sizeof(float) * kQueries * rounded(seen));
  float *score[kQueries], *to[kQueries], *out[kQueries];
  const float *q[kQueries], *key[kQueries];
  const float* p[kQueries];
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
      end[m] = a.past + t + 1;
      begin[m] = least(a.padding, end[m] - 1);  // padding looks at itself, so that it has something to look at
      from = least(from, begin[m]), until = most(until, end[m]);
      shared_from = most(shared_from, begin[m]), shared_until = least(shared_until, end[m]);
    }
    for (int64_t s = from; s < until; s += kQueries) {
      const int keys = static_cast<int>(least<int64_t>(kQueries, until - s));
      for (int n = 0; n < keys; ++n) key[n] = a.keys + (s + n) * a.features;
      if (!first)  // only the first queries find the keys in memory
        for (int64_t line = 0; line < kQueries * a.features; line += kPanel) __builtin_prefetch(key[0] + kAhead + line);
      for (int m = 0; m < rows; ++m) to[m] = score[m] + s;
      dots_of<kQueries, kQueries>(rows, keys, q, key, a.features, to);
    }
    for (int m = 0; m < rows; ++m) softmax(score[m], begin[m], end[m], a.scale);
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
