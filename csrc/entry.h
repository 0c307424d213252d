// Shared by the two entry points of the kernels: the torch op (register.cpp) and the direct call (dispatcher_bypass.cpp).
#pragma once
#include "program.h"

namespace dynamicgate {

// Whether `words` and `floats`, the sizes of two tensors, can come from the same call of pack.
bool fits(const Program* program, int64_t words, int64_t floats);
// The number of blocks for which the caller must pass factors; 0: none.
int64_t given_blocks(const Program& program);
// Runs the chain on as many of torch's threads as pay off.
void run_call(Call call);

}  // namespace dynamicgate
