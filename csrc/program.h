// The packed program: a chain of layers as a list of 32-bit words, written by Python and read by the kernels.
// src/dynamicgate/ops/chain/packing.py writes the same words in the same order: change both together.
#pragma once
#include <stdint.h>

namespace dynamicgate {

constexpr int32_t kMagic = 0x44470003;  // "DG", format 3
constexpr int32_t kStagedMagic = 0x44475301;  // "DGS", format 1: a program in which rows stop after a stage
constexpr int kPanel = 16;              // outputs side by side in memory: one cache line of floats

// Half panels hold the upper halves of floats (bfloat16), which is exact for weights that have no other bits. Byte panels
// hold whole numbers from -127 to 127; each output has a scale, and the scales follow the biases.
//
// In the layouts of inputs, all weights of an input lie side by side, and each input has a threshold, which follow the
// biases and scales: inputs that are not larger count as zeros, and of a single row their weights are not read.
//
// In the layouts of units, all weights of a unit lie side by side, with zeros up to whole panels of inputs. Only `value`
// may have one, beside the same layout of inputs. The thresholds of its inputs are followed by one for each unit, for the
// factor that it is multiplied by: an activated unit of `main` that is not larger counts as zero, and then the weights of
// the unit are not read for few rows.
enum Layout : int32_t { kPanels = 0, kRows = 1, kVectors = 2, kCsr = 3, kColumns = 4, kHalfPanels = 5, kBytePanels = 6,
                        kInputs = 7, kHalfInputs = 8, kByteInputs = 9, kUnits = 10, kHalfUnits = 11, kByteUnits = 12 };
// The codes of src/dynamicgate/activations.py.
enum Activation : int32_t { kIdentity = 0, kRelu = 1, kGelu = 2, kGeluTanh = 3, kSilu = 4, kTanh = 5, kQuickGelu = 6, kRelu2 = 7 };
constexpr int32_t kNearest = 8;  // only between the two maps of a gate: 1 for the largest value of a row, 0 for all others

struct Linear {
  int32_t layout;
  int32_t inputs;      // features read; rows, csr and columns also count the padding between blocks
  int32_t units;       // outputs, without padding
  int32_t width;       // positions written for each row: outputs, each gated block padded to whole panels
  int32_t weight;      // where the weights start, in units of 16 floats
  int32_t bias;        // likewise; always present, zeros where the layer has none
  int32_t index;       // where the index lists start, in words of the program
  int32_t activation;
  int32_t skip_zeros;  // vectors are then grouped by input: starts for each input, and the panel of each vector
};

struct Layer {
  Linear main;
  Linear gate[2];
  Linear value;         // multiplies the activated units of `main`, for SwiGLU; 0 units: none
  int32_t gate_stages;  // linear maps of the gate network; 0 with blocks > 0: the caller says which blocks are open
  int32_t blocks;       // 0: not gated
  int32_t block;        // units in a block (the last may have fewer)
  int32_t block_width;  // positions of a block, padding included
  int32_t cut;          // one float for each block: open iff logit > cut
  int32_t top_k;        // this many of the largest logits open their block whatever the cut is
  // What open units are multiplied by; at most one of the two is not 0, and if both are 0 it is 1.
  float inverse_tau;         // sigmoid(logit * inverse_tau); below 0: softmax(logit * -inverse_tau) over the open blocks
  float inverse_soft_width;  // min(1, (logit - cut) * inverse_soft_width); below 0: the same with its size and without the 1
};

// How a row is scored after a stage; the next stage opens above the cut. The order of DECIDE in ops/chain/stages.py.
enum Decide : int32_t { kMargin = 0, kEntropy = 1, kHead = 2 };

// What one stage adds to one layer. The units of a layer lie side by side in a row, stage after stage, each stage padded to
// whole panels with units that are always zero.
struct Part {
  Linear linear;
  int32_t from;  // where the features it reads start, in the row before it
  int32_t to;    // where its units start, in the row of its layer
};

struct Program {
  int32_t magic, layers, inputs, outputs, weights, words;  // weights: in units of 16 floats
  int32_t stages, decide;                                  // 0 in a plain chain
  const Layer* layer() const { return reinterpret_cast<const Layer*>(this + 1); }
  // In a staged program, for each stage its part of every layer and then the head that scores it, if heads decide.
  const Part* parts(int stage) const { return reinterpret_cast<const Part*>(this + 1) + stage * (layers + 1); }
  const float* cut() const { return reinterpret_cast<const float*>(parts(stages)); }  // one for each stage; the last is unused
};

static_assert(sizeof(Linear) == 36 && sizeof(Layer) == 176 && sizeof(Program) == 32 && sizeof(Part) == 44,
              "must match packing.py");

// Runs `task` for 0..tasks-1, in any order and possibly on several threads.
struct Pool {
  void (*run)(const Pool&, int tasks, void (*task)(int index, void* context), void* context);
  int threads;
};

struct Call {
  const Program* program;
  const float* weights;
  const float* x;
  int64_t rows, x_row_stride, x_column_stride;
  const float* factor;  // [rows, blocks] of the layer without a gate, or null
  float* y;             // [rows, outputs]
  const Pool* pool;
};

using ChainFn = void (*)(const Call&);

// One copy of the kernels for each instruction set; cpu_level.cpp chooses among them when the library is loaded.
struct DecoderCall;  // decoder_program.h

struct Level {
  const char* name;
  ChainFn chain;
  void (*decode)(const DecoderCall&);
};
const Level& best_level();
// Null where this processor or this build does not have that level.
const Level* level_named(const char* name);

// For tests: fills every workspace and output with NaN before use.
extern bool poison;

}  // namespace dynamicgate
