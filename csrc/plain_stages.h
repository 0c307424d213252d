// A row with NaN or infinite values through a stack in stages, in the plainest way: see plain_row.h.
#pragma once
#include "plain_row.h"
#include "staged.h"

namespace {

bool is_ordinary_row(const Call& call, int64_t row) {
  const float* x = call.x + row * call.x_row_stride;
  if (call.x_column_stride == 1) return ordinary(x, call.program->inputs);
  for (int i = 0; i < call.program->inputs; ++i)
    if (!ordinary(x + i * call.x_column_stride, 1)) return false;
  return true;
}

void run_plain_stages(const Call& call, int64_t row) {
  static thread_local Workspace workspace;
  const Program& program = *call.program;
  const int last = program.layers - 1, stages = program.stages;
  int64_t width = program.inputs;
  for (int k = 0; k < stages; ++k)
    for (int l = 0; l <= last; ++l) width = most<int64_t>(width, program.parts(k)[l].to + program.parts(k)[l].linear.width);
  float *x = nullptr, *hidden = nullptr, *sum = nullptr, *added = nullptr, *score = nullptr;
  Met met = {};
  for (int pass = 0; pass < 2; ++pass) {  // first to count, then to take
    Allotter memory = {pass ? &workspace : nullptr};
    x = memory.take<float>(width), hidden = memory.take<float>(last * width), sum = memory.take<float>(width);
    added = memory.take<float>(width), score = memory.take<float>(kPanel), met = {memory.take<int>(width), memory.take<uint8_t>(width)};
    if (!pass) workspace.reserve(memory.total);
  }
  for (int i = 0; i < program.inputs; ++i) x[i] = call.x[row * call.x_row_stride + i * call.x_column_stride];
  const auto run = [&](const Linear& linear, const float* in, float* out) {
    plain_linear(call, linear, in, {linear.inputs, linear.inputs, linear.inputs}, out, met);
    activate(linear.activation, out, linear.width, 1.0f);
  };
  for (int l = 0; l < last; ++l)
    for (int k = 0; k < stages; ++k) {
      const Part& part = program.parts(k)[l];
      const float* in = l ? hidden + (l - 1) * width : x;
      float* out = hidden + l * width + part.to;
      run(part.linear, in + part.from, out);
      for (int n = part.linear.width; n > 0 && !met.used[n - 1]; --n) out[n - 1] = 0.0f;  // padding is 0, not 0 * inf
      if (!l) continue;
      // In the model a unit reads the units of later stages too, with weights of zero.
      const Part& end = program.parts(stages - 1)[l - 1];
      for (int i = part.from + part.linear.inputs; i < end.to + end.linear.width; ++i)
        for (int n = 0; n < part.linear.units; ++n) out[n] += met.used[n] ? 0.0f * in[i] : 0.0f;
    }
  for (int k = 0; k < stages; ++k) {
    const Part* parts = program.parts(k);
    float* result = k ? added : sum;
    run(parts[last].linear, hidden + (last - 1) * width + parts[last].from, result);
    if (k)
      for (int c = 0; c < program.outputs; ++c) sum[c] += added[c];
    if (k + 1 == stages) break;
    if (program.decide == dynamicgate::kHead)
      run(parts[program.layers].linear, hidden + (last - 1) * width + parts[program.layers].from, score);
    else
      score[0] = program.decide == dynamicgate::kEntropy ? entropy_score(sum, program.outputs)
                                                         : margin_score(sum, program.outputs);
    if (!(score[0] > program.cut()[k])) break;
  }
  memcpy(call.y + row * program.outputs, sum, sizeof(float) * program.outputs);
}

}  // namespace
