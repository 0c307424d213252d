// Runs a decoder or an encoder over new tokens: all layers in one call, the linear maps as chains, the rest here.
#pragma once
#include <time.h>

#include "attention.h"
#include "decoder_program.h"
#include "linear.h"

namespace dynamicgate {
void DG_NAME(chain_, DG_LEVEL)(const Call& call);
}

namespace {

using dynamicgate::Block;
using dynamicgate::Decoder;
using dynamicgate::DecoderCall;
using dynamicgate::Norm;
using dynamicgate::SubChain;

// Adds the time since the last call to a part.
struct Stopwatch {
  double* seconds;
  double last = 0.0;
  static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }
  void start() {
    if (seconds) last = now();
  }
  void add_to(dynamicgate::DecoderPart part) {
    if (!seconds) return;
    const double time = now();
    seconds[part] += time - last, last = time;
  }
};

void run_sub(const DecoderCall& call, const SubChain& sub, const float* x, int64_t x_stride, int64_t rows, float* y) {
  Call inner = {};
  inner.program = call.program->chain(sub);
  inner.weights = call.weights + static_cast<int64_t>(sub.lines) * kPanel;
  inner.x = x, inner.rows = rows, inner.x_row_stride = x_stride, inner.x_column_stride = 1;
  inner.y = y, inner.pool = call.pool;
  dynamicgate::DG_NAME(chain_, DG_LEVEL)(inner);
}

// The mean of (x - center)^2 for a power of 2, of x - center for 1. In double: of 4,096 numbers float32 loses more than
// all that follows.
template <int Power>
double mean_of(const float* x, int features, double center) {
  double sums[4] = {};
  const auto term = [&](int k) {
    const double apart = x[k] - center;
    return Power == 2 ? apart * apart : apart;
  };
  int k = 0;
  for (; k + 4 <= features; k += 4)
    for (int lane = 0; lane < 4; ++lane) sums[lane] += term(k + lane);
  for (; k < features; ++k) sums[0] += term(k);
  return (sums[0] + sums[1] + sums[2] + sums[3]) / features;
}

// RMS norm: y = weight * x / root mean square. Layer norm: the same of x without its mean, and a bias.
void normalize(const DecoderCall& call, const Norm& norm, const float* x, int64_t rows, int features, float* y) {
  const float* weight = call.weights + static_cast<int64_t>(norm.weight) * kPanel;
  const float* bias = norm.bias < 0 ? nullptr : call.weights + static_cast<int64_t>(norm.bias) * kPanel;
  for (int64_t row = 0; row < rows; ++row, x += features, y += features) {
    const double center = bias ? mean_of<1>(x, features, 0.0) : 0.0;
    const float factor = static_cast<float>(1.0 / sqrt(mean_of<2>(x, features, center) + norm.epsilon));
    if (bias)
      for (int n = 0; n < features; ++n) y[n] = static_cast<float>(x[n] - center) * factor * weight[n] + bias[n];
    else
      for (int n = 0; n < features; ++n) y[n] = x[n] * factor * weight[n];
  }
}

// Cosine and sine for each row, [rows][head features]: first all cosines, then all sines.
void angles(const DecoderCall& call, int64_t rows, float* turn) {
  const Decoder& program = *call.program;
  const float* speed = call.weights + static_cast<int64_t>(program.speed) * kPanel;
  const int half = program.head_features / 2;
  for (int64_t row = 0; row < rows; ++row, turn += program.head_features)
    for (int k = 0; k < half; ++k) {
      const float angle = static_cast<float>(call.position[row]) * speed[k];
      turn[k] = cosf(angle) * program.rotation_scale;
      turn[half + k] = sinf(angle) * program.rotation_scale;
    }
}

void rotate(const float* turn, int features, const float* x, float* y) {
  const int half = features / 2;
  for (int k = 0; k < half; ++k) {
    const float a = x[k], b = x[half + k];
    y[k] = a * turn[k] - b * turn[half + k];
    y[half + k] = b * turn[k] + a * turn[half + k];
  }
}

struct LayerOfCall {
  const DecoderCall* call;
  float *qkv, *out;
  const float* turn;
  int layer;
};

// One sequence and one head of keys: normalize, rotate, write into the cache, attend.
void run_head(int index, void* context) {
  const LayerOfCall& at = *static_cast<const LayerOfCall*>(context);
  const DecoderCall& call = *at.call;
  const Decoder& p = *call.program;
  const Block& block = p.block()[at.layer];
  const int64_t sequence = index / p.key_heads, head = index % p.key_heads, size = p.head_features;
  const int64_t row_width = (p.heads + 2ll * p.key_heads) * size, group = p.heads / p.key_heads;
  const int64_t plane = call.sequences * p.key_heads * call.room * size;
  const bool both_ways = p.flags & dynamicgate::kBothWays;  // then nothing is kept: every layer writes in the same place
  float* keys = call.cache + (both_ways ? 0 : 2 * at.layer * plane) + (sequence * p.key_heads + head) * call.room * size;
  float* values = keys + plane;
  for (int64_t t = 0; t < call.positions; ++t) {
    const int64_t row = sequence * call.positions + t;
    float* qkv = at.qkv + row * row_width;
    const float* turn = at.turn + row * size;
    float *q = qkv + head * group * size, *k = qkv + (p.heads + head) * size;
    if (block.of_queries.weight >= 0) normalize(call, block.of_queries, q, group, p.head_features, q);
    if (block.of_keys.weight >= 0) normalize(call, block.of_keys, k, 1, p.head_features, k);
    for (int64_t g = 0; g < group; ++g) rotate(turn, p.head_features, q + g * size, q + g * size);
    rotate(turn, p.head_features, k, keys + (call.past + t) * size);
    memcpy(values + (call.past + t) * size, qkv + (p.heads + p.key_heads + head) * size, sizeof(float) * size);
  }
  const int64_t first = sequence * call.positions, column = head * group * size;
  Attention a = {};
  a.q = at.qkv + first * row_width + column, a.q_stride = row_width;
  a.out = at.out + first * p.heads * size + column, a.out_stride = p.heads * size;
  a.keys = keys, a.values = values;
  a.positions = call.positions, a.past = call.past, a.padding = call.padding[sequence];
  a.end = both_ways ? call.end[sequence] : 0;
  a.queries_per_key = static_cast<int>(group), a.features = p.head_features, a.scale = p.score_scale;
  attend(a);
}

void run_attention(LayerOfCall at) {
  const DecoderCall& call = *at.call;
  const Decoder& p = *call.program;
  const int tasks = static_cast<int>(call.sequences * p.key_heads);
  const int64_t work = 2 * call.sequences * call.positions * (call.past + call.positions) * p.heads * p.head_features;
  if (call.pool && call.pool->threads > 1 && tasks > 1 && work > 2 * kWorkWorthATask)
    return call.pool->run(*call.pool, tasks, run_head, &at);
  for (int i = 0; i < tasks; ++i) run_head(i, &at);
}

void add(const float* y, int64_t count, float* x) {
  for (int64_t i = 0; i < count; ++i) x[i] += y[i];
}

void run_decoder(const DecoderCall& call) {
  static thread_local Workspace workspace;
  const Decoder& p = *call.program;
  const int64_t rows = call.sequences * call.positions, D = p.features, mixed = int64_t{p.heads} * p.head_features;
  float *normed = nullptr, *qkv = nullptr, *y = nullptr, *turn = nullptr, *out = nullptr;
  for (int pass = 0; pass < 2; ++pass) {  // first to count, then to take
    Allotter memory = {pass ? &workspace : nullptr};
    normed = memory.take<float>(rows * D), y = memory.take<float>(rows * D), out = memory.take<float>(rows * mixed);
    qkv = memory.take<float>(rows * (mixed + 2ll * p.key_heads * p.head_features));
    turn = memory.take<float>(rows * p.head_features);
    if (!pass) workspace.reserve(memory.total);
  }
  Stopwatch watch = {call.seconds};
  watch.start();
  angles(call, rows, turn);
  const bool behind = p.flags & dynamicgate::kNormsBehind;
  const float* read = behind ? call.x : normed;  // by the layers
  const auto normalize_all = [&](const Norm& norm, float* to) {
    normalize(call, norm, call.x, rows, p.features, to);
    watch.add_to(dynamicgate::kNorms);
  };
  for (int l = 0; l < p.layers; ++l) {
    const Block& block = p.block()[l];
    if (!behind) normalize_all(block.attention_norm, normed);
    run_sub(call, block.qkv, read, D, rows, qkv);
    watch.add_to(dynamicgate::kProjections);
    run_attention({&call, qkv, out, turn, l});
    watch.add_to(dynamicgate::kAttention);
    run_sub(call, block.mix, out, mixed, rows, y);
    watch.add_to(dynamicgate::kProjections);
    add(y, rows * D, call.x);
    normalize_all(behind ? block.attention_norm : block.ffn_norm, behind ? call.x : normed);
    run_sub(call, block.ffn, read, D, rows, y);
    watch.add_to(dynamicgate::kFfn);
    add(y, rows * D, call.x);
    if (behind) normalize_all(block.ffn_norm, call.x);
  }
  if (p.norm.weight >= 0) normalize_all(p.norm, call.x);
  if (!call.y) return;
  const int64_t skipped = call.positions - call.scored;
  for (int64_t b = 0; skipped && b < call.sequences; ++b)  // the scored positions of all sequences side by side
    memcpy(normed + b * call.scored * D, call.x + (b * call.positions + skipped) * D, sizeof(float) * call.scored * D);
  run_sub(call, p.head, skipped ? normed : call.x, D, call.sequences * call.scored, call.y);
  watch.add_to(dynamicgate::kHeadPart);
}

}  // namespace
