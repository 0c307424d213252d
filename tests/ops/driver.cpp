// Runs packed chains from a file on every instruction set of this processor and compares with the expected results.
// It is for sanitizers, which Python and torch would disturb, and for emulated processors.
//   driver            prints the level that would be used, then all that this processor has
//   driver pool       checks that a late thread makes the pool pause: one thread for a number of calls
//   driver FILE       runs the cases; exits 1 at the first wrong result
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "../../csrc/pool.h"

using namespace dynamicgate;

static void run_on_threads(const Pool& pool, int tasks, void (*task)(int, void*), void* context) {
  std::vector<std::thread> threads;
  for (int t = 0; t < pool.threads; ++t)
    threads.emplace_back([=, &pool] {
      for (int i = t; i < tasks; i += pool.threads) task(i, context);
    });
  for (std::thread& thread : threads) thread.join();
}

template <class T>
static std::vector<T> read(FILE* file, size_t count) {
  std::vector<T> values(count);  // no longer than needed, so that a sanitizer finds a read past the end
  if (count && fread(values.data(), sizeof(T), count, file) != count) exit(2);
  return values;
}

static int delay_us = 0;

static int32_t late_parallel_for(int64_t begin, int64_t end, int64_t, void (*work)(int64_t, int64_t, void*), void* context) {
  usleep(delay_us);
  std::thread other([=] { work(begin + 1, end, context); });
  work(begin, begin + 1, context);
  other.join();
  return 0;
}

static void busy(int, void*) {
  volatile double sum = 0;
  for (int i = 0; i < 300000; ++i) sum = sum + i;
}

// The number of calls that run on one thread after a region that finished late.
static int paused_calls() {
  int calls = 0;
  while (usable_threads(2) == 1) ++calls;
  return calls;
}

static int check_pool() {
  use_pool(late_parallel_for);
  const Pool pool = {run_tasks, 2};
  delay_us = 50000;
  for (int expected : {16, 32, 64}) {
    run_tasks(pool, 4, busy, nullptr);
    const int found = paused_calls();
    if (found != expected) return printf("paused for %d calls instead of %d\n", found, expected), 1;
  }
  if (usable_threads(1) != 1 || usable_threads(2) != 2) return printf("did not resume\n"), 1;
  return 0;
}

int main(int arguments, char** argument) {
  const char* names[] = {"avx512", "avx2", "sse2", "neon", "plain"};
  if (arguments < 2) {
    printf("%s", best_level().name);
    for (const char* name : names)
      if (level_named(name)) printf(" %s", name);
    printf("\n");
    return 0;
  }
  if (!strcmp(argument[1], "pool")) return check_pool();
  poison = true;
  FILE* file = fopen(argument[1], "rb");
  if (!file) return 2;
  int64_t head[6];  // rows, features, outputs, words, floats, factors
  int cases = 0, levels = 0;
  for (; fread(head, sizeof head, 1, file) == 1; ++cases) {
    const auto words = read<int32_t>(file, head[3]);
    const auto weights = read<float>(file, head[4]);
    const auto x = read<float>(file, head[0] * head[1]);
    const auto factor = read<float>(file, head[5]);
    const auto expected = read<float>(file, head[0] * head[2]);
    levels = 0;
    for (const char* name : names) {
      const Level* level = level_named(name);
      if (!level) continue;
      ++levels;
      for (int threads : {1, 3}) {
        std::vector<float> y(expected.size());
        const Pool pool = {run_on_threads, threads};
        Call call = {};
        call.program = reinterpret_cast<const Program*>(words.data());
        call.weights = weights.data(), call.x = x.data(), call.rows = head[0];
        call.x_row_stride = head[1], call.x_column_stride = 1;
        call.factor = factor.empty() ? nullptr : factor.data();
        call.y = y.data(), call.pool = &pool;
        if (call.rows) level->chain(call);
        for (size_t i = 0; i < y.size(); ++i)
          if (!(fabsf(y[i] - expected[i]) <= 2e-5f * (1.0f + fabsf(expected[i])))) {
            printf("case %d, %s, %d threads: %g instead of %g\n", cases, name, threads, y[i], expected[i]);
            return 1;
          }
      }
    }
  }
  fclose(file);
  printf("%d cases on %d levels\n", cases, levels);
  return 0;
}
