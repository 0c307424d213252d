// Runs tasks on torch's own threads: there is no second pool, and torch.set_num_threads is respected.
#include "pool.h"

#include <time.h>

#include <atomic>

namespace dynamicgate {
namespace {

ParallelFor parallel_for = nullptr;

struct Shared {
  std::atomic<int> next{0};
  std::atomic<int64_t> busy_ns{0};
  int tasks;
  void (*task)(int, void*);
  void* context;
};

int64_t now(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

// Each thread takes the next free task: a thread that starts late finds none left and delays no work.
void take_tasks(int64_t, int64_t, void* context) {
  Shared& shared = *static_cast<Shared*>(context);
  const int64_t start = now(CLOCK_THREAD_CPUTIME_ID);
  for (int i; (i = shared.next.fetch_add(1, std::memory_order_relaxed)) < shared.tasks;) shared.task(i, shared.context);
  shared.busy_ns += now(CLOCK_THREAD_CPUTIME_ID) - start;
}

// The end of a parallel region still waits for every thread to arrive. Next to other busy processes that can take longer
// than the work itself (measured: 980 us instead of 470). So when a region took longer than the processor time of its
// tasks, one thread would have been faster: use one for a number of calls, and for twice as many each time it happens.
constexpr int kFirstPause = 16, kLongestPause = 1024;
std::atomic<int> calls_to_pause{0}, pause_length{0};

}  // namespace

void use_pool(ParallelFor found) { parallel_for = found; }

int usable_threads(int threads) {
  if (threads < 2 || calls_to_pause.load(std::memory_order_relaxed) <= 0) return threads;
  --calls_to_pause;
  return 1;
}

void run_tasks(const Pool& pool, int tasks, void (*task)(int, void*), void* context) {
  Shared shared;
  shared.tasks = tasks, shared.task = task, shared.context = context;
  const int64_t start = now(CLOCK_MONOTONIC);
  if (parallel_for && tasks > 1) parallel_for(0, pool.threads < tasks ? pool.threads : tasks, 1, take_tasks, &shared);
  take_tasks(0, 0, &shared);  // runs everything where there is no pool, else finds nothing left
  if (tasks < 2) return;
  const bool late = now(CLOCK_MONOTONIC) - start > shared.busy_ns;
  if (late && calls_to_pause <= 0) {  // not already decided by an earlier region of this call
    const int last = pause_length;
    pause_length = last == 0 ? kFirstPause : last < kLongestPause ? 2 * last : kLongestPause;
    calls_to_pause = pause_length.load();
  } else if (!late && calls_to_pause <= 0) {
    pause_length = 0;
  }
}

}  // namespace dynamicgate
