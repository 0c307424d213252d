// Chooses the copy of the kernels for this processor.
#include <string.h>

#include "program.h"

namespace dynamicgate {

bool poison = false;

#if defined(__x86_64__)
void chain_sse2(const Call&);
void decode_sse2(const DecoderCall&);
void chain_avx2(const Call&);
void decode_avx2(const DecoderCall&);
void chain_avx512(const Call&);
void decode_avx512(const DecoderCall&);

static const Level kLevels[] = {  // best first
    {"avx512", chain_avx512, decode_avx512}, {"avx2", chain_avx2, decode_avx2}, {"sse2", chain_sse2, decode_sse2}};

static bool supported(const char* name) {
  __builtin_cpu_init();  // also asks the operating system, which must save wide registers between threads
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (!strcmp(name, "avx512")) return avx2 && __builtin_cpu_supports("avx512f");
  return avx2 || strcmp(name, "avx2");
}
#elif defined(__aarch64__)
void chain_neon(const Call&);
void decode_neon(const DecoderCall&);
static const Level kLevels[] = {{"neon", chain_neon, decode_neon}};
static bool supported(const char*) { return true; }
#else
void chain_plain(const Call&);
void decode_plain(const DecoderCall&);
static const Level kLevels[] = {{"plain", chain_plain, decode_plain}};
static bool supported(const char*) { return true; }
#endif

const Level* level_named(const char* name) {
  for (const Level& level : kLevels)
    if (!strcmp(level.name, name) && supported(name)) return &level;
  return nullptr;
}

const Level& best_level() {
  for (const Level& level : kLevels)
    if (supported(level.name)) return level;
  return kLevels[sizeof kLevels / sizeof *kLevels - 1];
}

}  // namespace dynamicgate
