// A whole decoder or encoder (norms, projections, rotary positions, attention with a cache, feed-forward layers, head) as
// a list of 32-bit words. Every linear map is a chain of its own (program.h) in it, with its part of the weights.
// src/dynamicgate/ops/decoder/packing.py writes the same words in the same order: change both together.
#pragma once
#include "program.h"

namespace dynamicgate {

constexpr int32_t kDecoderMagic = 0x44474C02;  // "DGL", format 2

enum DecoderFlag { kBothWays = 1, kNormsBehind = 2 };  // positions see later ones; norms stand behind the layers

struct Norm {
  int32_t weight, bias;  // where they start, in units of 16 floats; without a bias (-1) the mean is not taken away
  float epsilon;
};

struct SubChain {
  int32_t words, lines;  // where its program and its weights start
};

struct Block {
  Norm attention_norm, ffn_norm;
  Norm of_queries, of_keys;  // of each head, before they are turned; -1 as weight for none
  SubChain qkv, mix, ffn;  // qkv gives all queries, then all keys, then all values
};

struct Decoder {
  int32_t magic, words, weights;  // weights: in units of 16 floats
  int32_t layers, features, heads, key_heads, head_features;
  int32_t speed;         // where the speeds of rotation start: head_features / 2 floats
  float rotation_scale;  // cosine and sine are multiplied by it
  float score_scale;
  Norm norm;        // -1 as weight for none
  SubChain head;    // from features to the scores of tokens
  int32_t outputs;  // tokens; 0 for no head
  int32_t flags;    // of DecoderFlag
  const Block* block() const { return reinterpret_cast<const Block*>(this + 1); }
  const Program* chain(const SubChain& sub) const {
    return reinterpret_cast<const Program*>(reinterpret_cast<const int32_t*>(this) + sub.words);
  }
};

static_assert(sizeof(Decoder) == 72 && sizeof(Block) == 72, "must match packing.py");

enum DecoderPart { kNorms, kProjections, kAttention, kFfn, kHeadPart, kParts };

struct DecoderCall {
  const Decoder* program;
  const float* weights;
  float* x;                     // [sequences][positions][features]: embedded tokens; overwritten
  int64_t sequences, positions;
  float* cache;  // [layers][keys, values][sequences][key heads][room][head features]; one layer where positions see both ways
  int64_t room, past;           // positions that fit, and those that are there; the new ones are written behind them
  const int64_t* position;      // [sequences][positions]: the angles of rotation
  const int64_t* padding;       // [sequences]: so many cached positions at the start are padding, which nothing looks at
  const int64_t* end;           // [sequences]: nothing looks at positions from here on, if positions see both ways
  float* y;                     // [sequences][scored][outputs], or null
  int64_t scored;               // the last positions, whose scores are wanted
  double* seconds;              // [kParts], added to, or null
  const Pool* pool;
};

using DecodeFn = void (*)(const DecoderCall&);

}  // namespace dynamicgate
