// Zeroes the gradients of pruned connections: this runs in every training step, so it must cost next to nothing.
#include "pool.h"

namespace dynamicgate {
namespace {

constexpr int64_t kPart = 65536;  // entries that are worth a thread of their own: about 20 us

struct Job {
  float* values;
  const uint8_t* mask;
  int64_t count;
  int parts;
};

void mask_part(int part, void* context) {
  const Job& job = *static_cast<const Job*>(context);
  const int64_t end = job.count * (part + 1) / job.parts;
  for (int64_t i = job.count * part / job.parts; i < end; ++i)
    job.values[i] = job.mask[i] ? job.values[i] : 0.0f;  // a select, not a product, so that infinities become 0 too
}

}  // namespace
}  // namespace dynamicgate

extern "C" __attribute__((visibility("default"))) void dynamicgate_mask(float* values, const uint8_t* mask,
                                                                        int64_t count, int threads) {
  using namespace dynamicgate;
  const int usable = usable_threads(threads);
  const int64_t wanted = count / kPart;
  Job job = {values, mask, count, wanted < 2 ? 1 : wanted < usable ? static_cast<int>(wanted) : usable};
  run_tasks(Pool{run_tasks, usable}, job.parts, mask_part, &job);
}
