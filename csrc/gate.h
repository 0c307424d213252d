// From logits to open blocks.
#pragma once
#include <math.h>

#include "step.h"

namespace {

// A key that sorts like the float, by the usual trick of flipping the bits of negative numbers. NaN comes last.
DG_INLINE uint32_t order_key(float z) {
  if (z != z) return 0;
  z += 0.0f;  // -0 and 0 are equal and must have one key
  uint32_t bits;
  memcpy(&bits, &z, 4);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Opens the blocks of the k largest logits; ties go to the lowest index. Bisection on the key: 32 passes for any k.
void open_top_k(const float* z, int blocks, int k, uint8_t* is_open) {
  uint32_t smallest = 0;  // the largest key that at least k logits reach
  for (uint32_t bit = 0x80000000u; bit; bit >>= 1) {
    int reach = 0;
    for (int b = 0; b < blocks; ++b) reach += order_key(z[b]) >= (smallest | bit);
    if (reach >= k) smallest |= bit;
  }
  int left = k;
  for (int b = 0; b < blocks; ++b) left -= order_key(z[b]) > smallest;
  for (int b = 0; b < blocks; ++b) {
    const uint32_t key = order_key(z[b]);
    if (key > smallest || (key == smallest && left-- > 0)) is_open[b] = 1;
  }
}

void list_rows(const Openness& open, int rows) {
  for (int b = 0; b < open.blocks; ++b) open.count[b] = 0;
  for (int row = 0; row < rows; ++row)
    for (int b = 0; b < open.blocks; ++b)
      if (open.is_open[row * open.blocks + b]) open.rows_of[b * kChunkRows + open.count[b]++] = row;
}

// The softmax of the open blocks among themselves; closed ones get 0.
void share_blocks(const float* z, const uint8_t* is_open, int blocks, float inverse_tau, float* factor) {
  float top = -INFINITY, total = 0.0f;
  for (int b = 0; b < blocks; ++b) top = is_open[b] && z[b] > top ? z[b] : top;
  for (int b = 0; b < blocks; ++b) factor[b] = is_open[b] ? exponential((z[b] - top) * inverse_tau) : 0.0f;
  for (int b = 0; b < blocks; ++b) total += factor[b];
  if (total == 0.0f) return;  // nothing is open
  for (int b = 0; b < blocks; ++b) factor[b] /= total;
}

// What the units of each open block are multiplied by; for closed blocks the result does not matter.
void scale_blocks(const dynamicgate::Layer& layer, const float* z, const float* cut, const uint8_t* is_open, float* factor) {
  if (layer.inverse_tau < 0.0f) return share_blocks(z, is_open, layer.blocks, -layer.inverse_tau, factor);
  if (layer.inverse_tau > 0.0f) {
    for (int b = 0; b < layer.blocks; ++b) factor[b] = sigmoid(z[b] * layer.inverse_tau);
    return;
  }
  if (layer.inverse_soft_width < 0.0f) {
    for (int b = 0; b < layer.blocks; ++b) factor[b] = (z[b] - cut[b]) * -layer.inverse_soft_width;
    return;
  }
  for (int b = 0; b < layer.blocks; ++b) {
    const float height = (z[b] - cut[b]) * layer.inverse_soft_width;
    factor[b] = height < 1.0f ? height : 1.0f;
  }
}

// The place of the largest value. As in torch, the first NaN is larger than all others, and ties go to the lowest index.
int place_of_largest(const float* z, int count) {
  int best = 0;
  for (int i = 1; i < count; ++i)
    if (z[i] > z[best] || (z[i] != z[i] && z[best] == z[best])) best = i;
  return best;
}

// The logits of a gate that names the nearest of its prototypes. The second map reads 1 for that one and 0 for all others,
// so that it is one column of its weights: looked up, not multiplied.
void look_up_nearest(const dynamicgate::Layer& layer, const float* weights, const float* closeness, float* logits, int rows) {
  const Linear &first = layer.gate[0], &second = layer.gate[1];
  const float* weight = weights + static_cast<int64_t>(second.weight) * kPanel;
  const float* bias = weights + static_cast<int64_t>(second.bias) * kPanel;
  for (int row = 0; row < rows; ++row) {
    const int64_t best = place_of_largest(closeness + static_cast<int64_t>(row) * first.width, first.units);
    float* z = logits + static_cast<int64_t>(row) * second.width;
    for (int n = 0; n < second.width; ++n) {
      const int64_t at = second.layout == dynamicgate::kRows ? int64_t{n} * second.inputs + best
                                                             : (n / kPanel * int64_t{second.inputs} + best) * kPanel + n % kPanel;
      z[n] = weight[at] + bias[n];
    }
  }
}

// Whether all blocks open above the same logit: then the largest logits are the first to be above it.
bool has_one_cut(const float* cut, int blocks) {
  for (int b = 1; b < blocks; ++b)
    if (cut[b] != cut[0]) return false;
  return true;
}

int count_open(const uint8_t* is_open, int blocks) {
  int count = 0;
  for (int b = 0; b < blocks; ++b) count += is_open[b];
  return count;
}

void decide(const dynamicgate::Layer& layer, const float* weights, const float* logits, int64_t stride,
            const Openness& open, int rows) {
  const float* cut = weights + static_cast<int64_t>(layer.cut) * kPanel;
  const bool one_cut = layer.top_k && has_one_cut(cut, open.blocks);
  for (int row = 0; row < rows; ++row) {
    const float* z = logits + row * stride;
    uint8_t* is_open = open.is_open + row * open.blocks;
    for (int b = 0; b < open.blocks; ++b) is_open[b] = z[b] > cut[b];
    const bool has_them = one_cut && count_open(is_open, open.blocks) >= layer.top_k;
    if (layer.top_k && !has_them) open_top_k(z, open.blocks, layer.top_k, is_open);
    if (open.factor) scale_blocks(layer, z, cut, is_open, open.factor + row * open.blocks);
  }
  list_rows(open, rows);
}

void decide_given(const float* factor, const Openness& open, int rows) {
  for (int i = 0; i < rows * open.blocks; ++i) {
    open.factor[i] = factor[i];
    open.is_open[i] = factor[i] != 0.0f;
  }
  list_rows(open, rows);
}

}  // namespace
