// Chooses the copy of the kernels for this processor.
#if defined(__x86_64__)
#include <cpuid.h>
#endif
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

// By the instruction itself: __builtin_cpu_supports needs a symbol of libgcc, which not every compiler links.
static bool supported(const char* name) {
  unsigned a, b, c, d;
  if (!strcmp(name, "sse2")) return true;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1) || !(c >> 12 & 1)) return false;  // xgetbv, fma
  unsigned saved, high;  // the registers that the operating system saves between threads: bits 1 and 2 up to 256 bits
  __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (saved & 6) != 6 || !(b >> 5 & 1)) return false;  // avx2
  return strcmp(name, "avx512") || ((saved & 0xe6) == 0xe6 && (b >> 16 & 1));                       // avx512f
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
