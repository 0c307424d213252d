// Checks and runs a packed decoder. It is called directly and not as an op of torch: nothing in it can be traced,
// differentiated or moved to another device.
#include <string.h>

#include <string>

#include "decoder_program.h"
#include "entry.h"
#include "validate.h"

namespace dynamicgate {
namespace {

constexpr int64_t kMostFeatures = 1 << 23, kMostPositions = 1 << 24;

bool is_count(int64_t number) { return number >= 1 && number <= kMostFeatures; }

struct DecoderChecker {
  const Decoder& p;
  const int64_t words, floats;
  const bool lists;

  bool has_floats(int64_t line, int64_t count) const { return line >= 0 && line * kPanel + count <= floats; }

  bool has_norm(const Norm& norm, int64_t features) const {
    return has_floats(norm.weight, features) && (norm.bias == -1 || has_floats(norm.bias, features));
  }

  bool may_have_norm(const Norm& norm, int64_t features) const { return norm.weight == -1 || has_norm(norm, features); }

  std::string sub(const SubChain& sub, int64_t inputs, int64_t outputs) const {
    constexpr int64_t kHead = sizeof(Program) / 4;
    if (sub.words < 0 || sub.words > words - kHead || sub.lines < 0) return "it does not lie within the program";
    const Program& chain = *p.chain(sub);
    if (chain.words < kHead || chain.words > words - sub.words) return "it does not lie within the program";
    if (chain.weights < 0 || !has_floats(sub.lines, chain.weights * int64_t{kPanel})) return "it does not lie within the weights";
    if (chain.magic != kMagic) return "it is no plain chain";
    const std::string problem = problem_of(&chain, chain.words, chain.weights * int64_t{kPanel}, lists);
    if (!problem.empty()) return problem;
    if (given_blocks(chain)) return "it expects factors from the caller";
    return chain.inputs == inputs && chain.outputs == outputs ? "" : "it does not fit the features around it";
  }

  std::string block(const Block& b) const {
    const int64_t mixed = int64_t{p.heads} * p.head_features, all = mixed + 2ll * p.key_heads * p.head_features;
    if (!has_norm(b.attention_norm, p.features) || !has_norm(b.ffn_norm, p.features) ||
        !may_have_norm(b.of_queries, p.head_features) || !may_have_norm(b.of_keys, p.head_features))
      return "a norm does not lie within the weights";
    const struct {
      const char* name;
      const SubChain& sub;
      int64_t inputs, outputs;
    } parts[] = {{"qkv: ", b.qkv, p.features, all}, {"mix: ", b.mix, mixed, p.features}, {"ffn: ", b.ffn, p.features, p.features}};
    for (const auto& part : parts) {
      const std::string problem = sub(part.sub, part.inputs, part.outputs);
      if (!problem.empty()) return part.name + problem;
    }
    return "";
  }

  std::string all() const {
    if (!is_count(p.features) || !is_count(p.heads) || !is_count(p.key_heads) || !is_count(p.head_features) ||
        p.outputs < 0 || p.outputs > kMostFeatures || p.head_features % 2 || p.heads % p.key_heads ||
        int64_t{p.heads} * p.head_features > kMostFeatures)
      return "its heads do not fit its features";
    if (p.flags & ~(kBothWays | kNormsBehind)) return "it has flags that nobody knows";
    if (!has_floats(p.speed, p.head_features / 2) || !may_have_norm(p.norm, p.features))
      return "a norm or the rotation does not lie within the weights";
    for (int l = 0; l < p.layers; ++l) {
      const std::string problem = block(p.block()[l]);
      if (!problem.empty()) return "layer " + std::to_string(l) + ": " + problem;
    }
    const std::string problem = p.outputs ? sub(p.head, p.features, p.outputs) : "";
    return problem.empty() ? "" : "head: " + problem;
  }
};

std::string decoder_problem(const Decoder* program, int64_t words, int64_t floats, bool lists) {
  constexpr int64_t kHead = sizeof(Decoder) / 4, kBlock = sizeof(Block) / 4;
  if (words < kHead) return "it is shorter than its header";
  const Decoder& p = *program;
  if (p.magic != kDecoderMagic && p.magic >> 8 == kDecoderMagic >> 8)
    return "it was packed by another version: compile the model again";
  if (p.magic != kDecoderMagic) return "it does not start as one";
  if (p.words != words || p.weights < 0 || p.weights * int64_t{kPanel} != floats)
    return "it says that it has another number of words or weights";
  if (p.layers < 1 || p.layers > (words - kHead) / kBlock) return "it is shorter than its layers";
  return DecoderChecker{p, words, floats, lists}.all();
}

std::string problem_of_call(const DecoderCall& call, int64_t cache_floats) {
  const Decoder& p = *call.program;
  const auto within = [](int64_t number, int64_t least, int64_t most) { return number >= least && number <= most; };
  if (!within(call.sequences, 1, kMostPositions) || !within(call.positions, 1, kMostPositions) ||
      !within(call.room, 1, kMostPositions) || !within(call.past, 0, call.room - call.positions))
    return "the new positions do not fit the cache";
  const bool both_ways = p.flags & kBothWays;
  const __int128 wanted = __int128{2} * (both_ways ? 1 : p.layers) * call.sequences * p.key_heads * call.room * p.head_features;
  if (wanted != cache_floats) return "the cache has another size";
  if (call.y && !p.outputs) return "there is no head that could score";
  if (call.y && !within(call.scored, 1, call.positions)) return "more positions are to be scored than there are";
  if (both_ways && (!call.end || call.past)) return "positions that see both ways are given all at once, with their ends";
  for (int64_t b = 0; b < call.sequences; ++b)
    if (!within(call.padding[b], 0, call.past + call.positions) ||
        (both_ways && !within(call.end[b], 1, call.positions)))
      return "there is more padding than positions";
  return "";
}

}  // namespace
}  // namespace dynamicgate

#define DG_EXPORT extern "C" __attribute__((visibility("default")))

// Like dynamicgate_problem, for a decoder.
DG_EXPORT void dynamicgate_decoder_problem(const int32_t* words, int64_t count, int64_t floats, char* text, int64_t room) {
  using namespace dynamicgate;
  strncpy(text, decoder_problem(reinterpret_cast<const Decoder*>(words), count, floats, true).c_str(), room - 1);
  text[room - 1] = 0;
}

// sizes: sequences, positions, floats of the cache, room, past, scored. Writes what is wrong into `text`, as above. The
// index lists were read when the decoder was packed or loaded.
DG_EXPORT void dynamicgate_run_decoder(const int32_t* words, int64_t count, const float* weights, int64_t floats,
                                       float* x, float* cache, const int64_t* position, const int64_t* padding,
                                       const int64_t* end, float* y, double* seconds, const int64_t* sizes, char* text,
                                       int64_t room) {
  using namespace dynamicgate;
  DecoderCall call = {};
  call.program = reinterpret_cast<const Decoder*>(words);
  call.weights = weights, call.x = x, call.cache = cache, call.position = position, call.padding = padding;
  call.end = end, call.y = y;
  call.seconds = seconds;
  call.sequences = sizes[0], call.positions = sizes[1], call.room = sizes[3], call.past = sizes[4], call.scored = sizes[5];
  std::string problem = decoder_problem(call.program, count, floats, false);
  if (problem.empty()) problem = problem_of_call(call, sizes[2]);
  if (problem.empty()) run_decoder_call(call);
  strncpy(text, problem.c_str(), room - 1);
  text[room - 1] = 0;
}
