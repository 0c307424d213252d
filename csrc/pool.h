#pragma once
#include "program.h"

namespace dynamicgate {

// at::parallel_for as torch's C interface offers it; returns non-zero on failure.
using ParallelFor = int32_t (*)(int64_t begin, int64_t end, int64_t grain, void (*)(int64_t, int64_t, void*), void*);

void use_pool(ParallelFor parallel_for);
// How many of torch's threads pay off now; asked once for each call of the op.
int usable_threads(int threads);
// For `Pool::run`.
void run_tasks(const Pool& pool, int tasks, void (*task)(int, void*), void* context);

}  // namespace dynamicgate
