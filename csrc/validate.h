// Whether a packed program can be run: everything that the kernels believe is checked here, and nowhere else.
#pragma once
#include <stdint.h>

#include <string>

#include "program.h"

namespace dynamicgate {

// What is wrong with a program of `words` words for `floats` weights, as the end of a sentence; empty if it can be run.
// `lists`: also read every entry of the index lists, which takes as long as they are; all else takes some 20 ns a layer.
std::string problem_of(const Program* program, int64_t words, int64_t floats, bool lists);

}  // namespace dynamicgate
