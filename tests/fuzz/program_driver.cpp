// Changes words of packed programs at random, asks the validator, and runs what it accepts. For sanitizers: a program that
// is accepted must not make the kernels touch memory that is not theirs.
//   program_driver FILE SEED COUNT
// FILE holds chains as tests/ops/test_native.py writes them.
#include <stdio.h>
#include <stdlib.h>

#include <random>
#include <vector>

#include "../../csrc/validate.h"

using namespace dynamicgate;

struct Case {
  std::vector<int32_t> words;
  std::vector<float> weights, x;
};

template <class T>
static std::vector<T> read(FILE* file, size_t count) {
  std::vector<T> values(count);
  if (count && fread(values.data(), sizeof(T), count, file) != count) exit(2);
  return values;
}

static int64_t given_blocks(const Program& program) {
  for (int l = 0; l < program.layers && !program.stages; ++l)
    if (program.layer()[l].blocks && !program.layer()[l].gate_stages) return program.layer()[l].blocks;
  return 0;
}

static std::mt19937 random_bits;
static int64_t below(int64_t limit) { return static_cast<int64_t>(random_bits() % static_cast<uint64_t>(limit)); }

static int32_t changed(int32_t word, const std::vector<int32_t>& words) {
  const int64_t near[] = {-16, -2, -1, 1, 2, 15, 16, 32, 4096};
  const int32_t odd[] = {0, 1, 2, 3, 4, 5, 7, 8, 16, -1, 0x7fffffff, -0x7fffffff - 1, 1 << 16, 1 << 23, 1 << 30, 0x7fc00000};
  switch (below(6)) {
    case 0: return odd[below(sizeof odd / sizeof *odd)];
    case 1: return static_cast<int32_t>(random_bits());
    case 2: return words[below(static_cast<int64_t>(words.size()))];
    case 3: return static_cast<int32_t>(static_cast<uint32_t>(word) ^ (1u << below(32)));
    default: return static_cast<int32_t>(static_cast<uint32_t>(word) + static_cast<uint32_t>(near[below(9)]));
  }
}

static void run(const std::vector<int32_t>& words, const std::vector<float>& weights, int64_t rows) {
  const Program& program = *reinterpret_cast<const Program*>(words.data());
  std::vector<float> x(rows * program.inputs), y(rows * program.outputs);
  for (float& value : x) value = below(3) ? 1e-3f * static_cast<float>(below(2000) - 1000) : 0.0f;
  const std::vector<float> factor(rows * given_blocks(program), 1.0f);
  Call call = {};
  call.program = &program, call.weights = weights.data(), call.x = x.data(), call.rows = rows;
  call.x_row_stride = program.inputs, call.x_column_stride = 1;
  call.factor = factor.empty() ? nullptr : factor.data(), call.y = y.data();
  best_level().chain(call);
}

int main(int arguments, char** argument) {
  if (arguments != 4) return 2;
  FILE* file = fopen(argument[1], "rb");
  if (!file) return 2;
  std::vector<Case> cases;
  int64_t head[6];  // rows, features, outputs, words, floats, factors
  while (fread(head, sizeof head, 1, file) == 1) {
    Case next = {read<int32_t>(file, head[3]), read<float>(file, head[4]), {}};
    read<float>(file, head[0] * head[1] + head[5] + head[0] * head[2]);
    cases.push_back(next);
  }
  fclose(file);
  poison = true;
  random_bits.seed(static_cast<uint32_t>(atol(argument[2])));
  const long count = atol(argument[3]);
  long refused = 0;
  for (long i = 0; i < count; ++i) {
    const Case& chosen = cases[below(static_cast<int64_t>(cases.size()))];
    // Exactly as long as needed, so that a sanitizer finds what is read past the end.
    std::vector<int32_t> words(chosen.words.begin(), chosen.words.end());
    const int64_t table = static_cast<int64_t>(words.size()) < 160 ? static_cast<int64_t>(words.size()) : 160;
    for (int64_t changes = 1 + below(3); changes; --changes) {
      const int64_t at = below(4) ? below(table) : below(static_cast<int64_t>(words.size()));
      words[at] = changed(words[at], words);
    }
    if (!below(20)) words.resize(below(static_cast<int64_t>(words.size()))), words.shrink_to_fit();
    const bool whole = below(2) && words.size() > 5;  // a careful forger keeps the counts of words and weights right
    if (whole) words[4] = static_cast<int32_t>(chosen.weights.size() / kPanel), words[5] = static_cast<int32_t>(words.size());
    const auto* program = reinterpret_cast<const Program*>(words.data());
    const auto size = static_cast<int64_t>(words.size()), floats = static_cast<int64_t>(chosen.weights.size());
    if (!problem_of(program, size, floats, true).empty()) {
      ++refused;
      continue;
    }
    for (int64_t rows : {1, 20}) run(words, chosen.weights, rows);
  }
  for (const Case& one : cases) {
    const std::string problem = problem_of(reinterpret_cast<const Program*>(one.words.data()),
                                           static_cast<int64_t>(one.words.size()), static_cast<int64_t>(one.weights.size()), true);
    if (!problem.empty()) return printf("a program as it was packed is refused: %s\n", problem.c_str()), 1;
  }
  printf("%ld programs, %ld refused, %ld run\n", count, refused, count - refused);
  return 0;
}
