// One linear map over the rows of a chunk, restricted to the open blocks of its inputs and outputs.
#pragma once
#include "activation.h"
#include "tile.h"

namespace {

using dynamicgate::kPanel;
using dynamicgate::Linear;

constexpr int kChunkRows = 256;  // rows run together: enough to reuse weights, few enough to stay in the L2 cache

// Which blocks of a vector are open, for each row. A vector that is not gated is one block, with `is_open` null.
struct Openness {
  int blocks, block, block_width;
  uint8_t* is_open;      // [rows][blocks]
  float* factor;         // [rows][blocks], or null for 1
  uint16_t* rows_of;     // [blocks][kChunkRows]: the rows for which a block is open, in order
  int* count;            // [blocks]
  bool whole;            // every block is open for every row
  int rows_in(int b, int rows) const { return is_open ? count[b] : rows; }
  int row(int b, int i) const { return is_open ? rows_of[b * kChunkRows + i] : i; }
  bool has(int row, int b) const { return !is_open || is_open[row * blocks + b]; }
};

// The inputs of each row that are not exactly zero, block by block.
struct Nonzero {
  float* value;      // [rows][inputs]
  uint16_t* index;   // [rows][inputs]: within the block
  int* count;        // [rows][blocks of inputs]
};

struct Step {
  const Linear* linear;
  const float* weight;
  const float* bias;
  const int32_t* words;  // of the whole program
  const float* in;
  const int* in_row;     // which of its rows are meant, or null for the first ones; only csr looks at it
  int64_t in_stride;
  const float* input(int row) const { return in + (in_row ? in_row[row] : row) * in_stride; }
  Openness in_open;
  float* out;
  int64_t out_stride;
  Openness out_open;
  int rows;
  Nonzero nonzero;
  bool skip;             // zero inputs are skipped: `nonzero` has been filled
  float* packed;         // [rows / 16][inputs][16] for csr
  bool is_packed;        // it has been filled with these rows
  bool packs_tiles;      // nobody else reads it: it is filled with sixteen rows at a time, which stay in the cache
  const int* panels;     // panels with at least one open output
  int panel_count;
  const int* listed;     // layouts of units, few rows: which units any of them needs
  int listed_count;
  int panel_block(int panel) const { return out_open.is_open ? panel * kPanel / out_open.block_width : 0; }
  int units(int in_block) const {
    return least(in_open.block, linear->inputs - in_block * in_open.block);
  }
};

bool in_panels(const Linear& linear) {
  return linear.layout == dynamicgate::kPanels || linear.layout == dynamicgate::kHalfPanels ||
         linear.layout == dynamicgate::kBytePanels;
}

bool in_units(const Linear& linear) { return linear.layout >= dynamicgate::kUnits; }
// Weights of a unit there, with zeros up to a whole panel of inputs.
int64_t unit_weights(const Linear& linear) { return (linear.inputs + int64_t{kPanel} - 1) / kPanel * kPanel; }
bool in_inputs(const Linear& linear) { return linear.layout >= dynamicgate::kInputs && !in_units(linear); }
bool in_halves(const Linear& linear) {
  return linear.layout == dynamicgate::kHalfPanels || linear.layout == dynamicgate::kHalfInputs ||
         linear.layout == dynamicgate::kHalfUnits;
}
bool in_bytes(const Linear& linear) {
  return linear.layout == dynamicgate::kBytePanels || linear.layout == dynamicgate::kByteInputs ||
         linear.layout == dynamicgate::kByteUnits;
}

}  // namespace
