// Checks a packed program before a kernel reads it. A program may come from a file, and a file may come from anyone: a
// single wrong count or offset would make the kernels read or write outside of their memory.
//
// The rules are those of packing.py and stage_packing.py. All sums and products are 64 bits wide, and every number is
// compared with its limits before it is used in one.
#include "validate.h"

namespace dynamicgate {
namespace {

// Features in a row and blocks in a layer. The kernels count the rows of a chunk (256) times this in 32 bits.
constexpr int64_t kMostFeatures = 1 << 23;
constexpr int64_t kIndexLimit = 1 << 16;  // indices take two bytes

int64_t padded(int64_t size) { return (size + kPanel - 1) / kPanel * kPanel; }

// How the features between two layers lie in memory; see Span in packing.py.
struct Span {
  int64_t units, block, stride;
  bool gated;
  int64_t blocks() const { return (units + block - 1) / block; }
  int64_t width() const { return stride == block ? units : blocks() * stride; }
};

Span whole(int64_t units) { return {units, units, units, false}; }

bool is_count(int64_t number) { return number >= 1 && number <= kMostFeatures; }

bool by_panel(int32_t layout) { return layout != kRows && layout != kCsr; }
bool has_thresholds(int32_t layout) { return layout >= kInputs; }
bool by_unit(int32_t layout) { return layout >= kUnits; }
bool in_halves(int32_t layout) { return layout == kHalfPanels || layout == kHalfInputs || layout == kHalfUnits; }
bool in_bytes(int32_t layout) { return layout == kBytePanels || layout == kByteInputs || layout == kByteUnits; }

// In blocks of constant length and not inlined, or gcc does not vectorise it: this runs at each call of the op (20,000
// entries: 25 -> 2 us).
__attribute__((noinline)) int64_t largest(const uint16_t* entry, int64_t count) {
  constexpr int kLanes = 64;
  uint16_t found[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) found[lane] = entry[i + lane] > found[lane] ? entry[i + lane] : found[lane];
  for (; i < count; ++i) found[0] = entry[i] > found[0] ? entry[i] : found[0];
  for (int lane = 1; lane < kLanes; ++lane) found[0] = found[lane] > found[0] ? found[lane] : found[0];
  return found[0];
}

struct Checker {
  const Program& program;
  const int64_t words, floats, table;  // table: the words before the index lists
  const bool lists;

  bool has_floats(int64_t line, int64_t count) const { return line >= 0 && count >= 0 && line * kPanel + count <= floats; }

  // The lists of one linear map, as many for each of `blocks` blocks of inputs: the entries of a block are below `block`,
  // and `limit` counts what they may point to in all blocks. Returns how many entries there are, or -1.
  int64_t entries(int64_t index, int64_t groups, int64_t blocks, int64_t block, int64_t limit) const {
    if (index < table || index > words || groups + 1 > words - index) return -1;
    const int32_t* start = reinterpret_cast<const int32_t*>(&program) + index;
    const int64_t total = start[groups];
    if (start[0] != 0 || total < 0 || (total + 1) / 2 > words - index - groups - 1) return -1;
    if (!lists) return total;
    bool falls = false;
    for (int64_t g = 0; g < groups; ++g) falls |= start[g + 1] < start[g];
    if (falls) return -1;  // from here on, every start is between 0 and the total
    const uint16_t* entry = reinterpret_cast<const uint16_t*>(start + groups + 1);
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t begin = start[groups / blocks * b], end = start[groups / blocks * (b + 1)];
      const int64_t left = limit - b * block, below = left < block ? left : block;
      if (end > begin && largest(entry + begin, end - begin) >= below) return -1;
    }
    return total;
  }

  const char* linear(const Linear& map, const Span& before, const Span& after, int32_t last_activation = kRelu2) const {
    if (map.layout < kPanels || map.layout > kByteUnits) return "a layout is unknown";
    if (has_thresholds(map.layout) && (before.gated || map.inputs > kIndexLimit)) return "it cannot leave out single inputs";
    if (map.activation < kIdentity || map.activation > last_activation) return "an activation is unknown";
    const bool dense = map.layout == kRows || map.layout == kCsr || map.layout == kColumns;
    if (map.inputs != (dense ? before.width() : before.units)) return "it does not read what the layer before gives";
    if (map.units != after.units || map.width != padded(after.width())) return "its outputs do not fit their width";
    if (map.skip_zeros != 0 &&
        (map.skip_zeros != 1 || before.gated || map.inputs > kIndexLimit || (map.layout != kPanels && map.layout != kVectors)))
      return "it cannot skip zeros";
    int64_t thresholds = has_thresholds(map.layout) ? map.inputs : 0;
    if (by_unit(map.layout)) thresholds += map.width;  // for factors
    if (!has_floats(map.bias, map.width * (in_bytes(map.layout) ? int64_t{2} : 1) + thresholds))
      return "its bias is not within the weights";
    const int64_t panels = map.width / kPanel;
    int64_t held = int64_t{map.width} * (by_unit(map.layout) ? padded(map.inputs) : map.inputs);
    if (in_halves(map.layout)) held /= 2;
    if (in_bytes(map.layout)) held = (held + 3) / 4;
    if (map.layout == kCsr || map.layout == kColumns)
      if (map.inputs > kIndexLimit) return "it has more inputs than indices reach";
    if (map.layout == kCsr) {
      held = entries(map.index, map.width, 1, map.inputs, map.inputs);
    } else if (map.layout == kVectors || map.layout == kColumns) {
      const bool by_input = map.skip_zeros;
      const int64_t blocks = by_input || map.layout == kColumns ? 1 : before.blocks();
      const int64_t groups = by_input ? map.inputs : blocks * panels, limit = by_input ? panels : map.inputs;
      const int64_t block = blocks > 1 ? before.block : limit;
      held = entries(map.index, groups, blocks, block, limit);
      held = held < 0 ? held : held * kPanel;
    }
    if (held < 0) return "its index lists point outside of what it reads, or of the program";
    return has_floats(map.weight, held) ? nullptr : "its weights are not within the weights of the program";
  }

  const char* gate(const Layer& layer, const Span& before) const {
    Span source = before;
    for (int g = 0; g < layer.gate_stages; ++g) {
      const Linear& map = layer.gate[g];
      if (!is_count(map.units)) return "its gate has a wrong number of units";
      // The kernels keep the transposed inputs of a csr gate for the layer that it gates.
      if (g && map.layout != kRows && map.layout != kPanels) return "the second map of its gate has a wrong layout";
      if (map.skip_zeros || has_thresholds(map.layout)) return "its gate cannot skip zeros";
      const Span outputs = whole(map.units);
      const bool may_name = g == 0 && layer.gate_stages == 2;
      if (const char* problem = linear(map, source, outputs, may_name ? kNearest : kRelu2)) return problem;
      source = outputs;
    }
    if (source.units != layer.blocks) return "its gate does not give one logit for each block";
    if (!has_floats(layer.cut, layer.blocks)) return "its thresholds are not within the weights";
    if (layer.top_k < 0 || layer.top_k > layer.blocks) return "it opens more blocks than there are";
    const bool scales = layer.inverse_tau == layer.inverse_tau && layer.inverse_soft_width == layer.inverse_soft_width;  // NaN
    if (!scales || (layer.inverse_tau != 0.0f && layer.inverse_soft_width != 0.0f)) return "its gate cannot scale like that";
    return nullptr;
  }

  // `after` becomes the span of the layer's outputs.
  const char* layer(const Layer& layer, const Span& before, Span& after) const {
    const int64_t units = layer.main.units;
    if (!is_count(units)) return "it has a wrong number of outputs";
    after = whole(units);
    if (by_unit(layer.main.layout)) return "only a value projection can lie unit by unit";
    if (has_thresholds(layer.main.layout) && layer.blocks) return "it leaves out both inputs and outputs";
    if (layer.gate_stages < 0 || layer.gate_stages > 2 || (layer.gate_stages && !layer.blocks))
      return "its gate has a wrong number of maps";
    if (layer.blocks) {
      if (!is_count(layer.block) || !is_count(layer.block_width)) return "its blocks have a wrong size";
      const int64_t stride = by_panel(layer.main.layout) ? padded(layer.block) : layer.block;
      after = {units, layer.block, stride, true};
      if (layer.block_width != stride || layer.blocks != after.blocks()) return "its blocks do not fit its outputs";
    }
    if (const char* problem = linear(layer.main, before, after)) return problem;
    if (layer.value.units) {
      const Linear& value = layer.value;
      const bool fits = by_unit(value.layout) ? value.layout - kUnits == layer.main.layout - kInputs : value.layout == layer.main.layout;
      if (before.gated || !fits || value.activation != kIdentity || value.skip_zeros)
        return "its value projection does not fit the other";
      if (const char* problem = linear(value, before, after)) return problem;
    } else if (layer.value.width) {
      return "its value projection has no units";
    }
    return layer.gate_stages ? gate(layer, before) : nullptr;
  }

  std::string chain() const {
    Span span = whole(program.inputs);
    int given = 0;
    for (int l = 0; l < program.layers; ++l) {
      const Layer& next = program.layer()[l];
      Span after = span;
      if (const char* problem = layer(next, span, after)) return "layer " + std::to_string(l) + ": " + problem;
      given += next.blocks && !next.gate_stages;
      span = after;
    }
    if (given > 1) return "more than one layer expects its factors from the caller";
    return span.units == program.outputs ? "" : "its last layer does not give its outputs";
  }

  const char* part(const Part& part, int64_t inputs, int64_t units, int64_t from, int64_t to) const {
    if (!is_count(inputs) || !is_count(units)) return "it has a wrong number of inputs or outputs";
    if (part.from != from || part.to != to) return "it does not lie where its stage does";
    if (has_thresholds(part.linear.layout)) return "stages cannot leave out single inputs";
    return linear(part.linear, whole(inputs), whole(units));
  }

  // `width`: the units of the last hidden layer up to this stage.
  const char* stage(int k, int last, int64_t width, int64_t own) const {
    const Part* parts = program.parts(k);
    if (parts[last].linear.activation != kIdentity) return "the outputs of a stage have no activation";
    if (const char* problem = part(parts[last], own, program.outputs, width - own, 0)) return problem;
    if (program.decide != kHead || k + 1 == program.stages) return nullptr;
    const Part& head = parts[last + 1];
    if (head.linear.layout != kRows) return "its head has a wrong layout";
    return part(head, width, 1, 0, 0);
  }

  std::string stages() const {
    const int last = program.layers - 1;
    int64_t own = 0;
    for (int k = 0; k < program.stages; ++k) {
      const std::string where = "stage " + std::to_string(k + 1) + ": ";
      int64_t read = program.inputs;
      for (int l = 0; l < last; ++l) {
        const Part& next = program.parts(k)[l];
        const int64_t to = k ? program.parts(k - 1)[l].to + int64_t{program.parts(k - 1)[l].linear.width} : 0;
        own = next.linear.units;
        if (!is_count(own) || own % kPanel) return where + "its units are not whole panels";
        if (const char* problem = part(next, read, own, 0, to)) return where + problem;
        read = to + own;
        if (!is_count(read)) return where + "it has too many units";
      }
      if (const char* problem = stage(k, last, read, own)) return where + problem;
    }
    return "";
  }
};

}  // namespace

std::string problem_of(const Program* program, int64_t words, int64_t floats, bool lists) {
  constexpr int64_t kHead = sizeof(Program) / 4;
  if (words < kHead) return "it is shorter than its header";
  const Program& p = *program;
  if (p.magic != kMagic && p.magic != kStagedMagic) return "it does not start as one";
  if (p.words != words || p.weights < 0 || p.weights * int64_t{kPanel} != floats)
    return "it says that it has another number of words or weights";
  if (!is_count(p.inputs) || !is_count(p.outputs)) return "it has a wrong number of inputs or outputs";
  const bool staged = p.magic == kStagedMagic;
  if (p.layers < 1 + staged || (staged ? p.stages < 2 : p.stages != 0)) return "it has a wrong number of layers or stages";
  if (p.decide < kMargin || p.decide > dynamicgate::kHead) return "it stops rows in an unknown way";
  // Divided instead of multiplied: the product of two counts from a file may not fit 64 bits.
  const int64_t of_layer = (staged ? sizeof(Part) : sizeof(Layer)) / 4;
  if (p.layers > words / of_layer) return "it is shorter than its layers";
  const int64_t of_stage = staged ? (p.layers + int64_t{1}) * of_layer + 1 : p.layers * of_layer;
  const int64_t count = staged ? p.stages : 1;
  if (count > (words - kHead) / of_stage) return "it is shorter than its layers";
  const Checker checker = {p, words, floats, kHead + count * of_stage, lists};
  return staged ? checker.stages() : checker.chain();
}

}  // namespace dynamicgate
