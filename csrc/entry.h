// Shared by the two entry points of the kernels: the torch op (register.cpp) and the direct call (dispatcher_bypass.cpp).
#pragma once
#include "decoder_program.h"

namespace dynamicgate {

// The number of blocks for which the caller must pass factors; 0: none.
int64_t given_blocks(const Program& program);
// Runs the chain on as many of torch's threads as pay off.
void run_call(Call call);
void run_decoder_call(DecoderCall call);

}  // namespace dynamicgate
