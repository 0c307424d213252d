// What the two ways into the kernels share: the torch op (register.cpp) and the call from Python (quick.cpp).
#pragma once
#include "program.h"

namespace dynamicgate {

// Whether `words` and `floats`, the sizes of two tensors, are those of one call of pack.
bool fits(const Program* program, int64_t words, int64_t floats);
// Blocks whose openness the caller must give; 0: none.
int64_t given_blocks(const Program& program);
// Runs the chain on as many of torch's threads as are worth it.
void run_call(Call call);

}  // namespace dynamicgate
