// Vectors as wide as the target's registers, by the vector extensions of gcc and clang; intrinsics only where those are
// slow.
#pragma once
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#include <stdint.h>
#include <string.h>

#include "program.h"

#if defined(__AVX512F__)
#define DG_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define DG_VECTOR_BYTES 32
#else
#define DG_VECTOR_BYTES 16
#endif
#define DG_INLINE inline __attribute__((always_inline))
#define DG_UNROLL _Pragma("GCC unroll 16")
#define DG_ROLLED _Pragma("GCC unroll 1")
#define DG_NOINLINE __attribute__((noinline))  // for micro-kernels: keeps their accumulators in registers

// Everything here and in the files that include this one is in an anonymous namespace and uses no template of the standard
// library: the linker could pick the AVX-512 version of a shared inline function for every instruction set.
namespace {

constexpr int kLanes = DG_VECTOR_BYTES / 4;
constexpr int kVectors16 = dynamicgate::kPanel / kLanes;  // vectors in one row of a panel
#if defined(__aarch64__)
// 20 accumulators, 4 weights, 5 inputs in 32 registers; with 6 rows gcc spills (39 -> 33 GF/s).
constexpr int kTileRows = 5;
// A multiply-add can take one lane of a vector as its factor, so inputs can be loaded four at a time, in tiles of up to
// this many rows. clang needs it because its broadcast of a single input is slow (23 -> 39 GF/s); gcc spills from 4 rows.
#if defined(__clang__)
constexpr int kLaneRows = 5;
#else
constexpr int kLaneRows = 3;
#endif
#else
constexpr int kTileRows = DG_VECTOR_BYTES == 64 ? 12 : 6;  // 12 accumulators in 16 AVX2 or 32 AVX-512 registers
constexpr int kLaneRows = 0;                               // a broadcast from memory is free
#endif
constexpr bool kWideTiles = kVectors16 == 1;  // tiles of several panels, where one register holds a row of a panel

#if defined(__clang__)
#define DG_SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#define DG_SHUFFLE_EIGHT(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#define DG_SHUFFLE_SIXTEEN(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int FourIndices __attribute__((vector_size(16)));
typedef uint16_t EightIndices __attribute__((vector_size(16)));
typedef int8_t SixteenIndices __attribute__((vector_size(16)));
#define DG_SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, FourIndices{i, j, k, l})
#define DG_SHUFFLE_EIGHT(a, b, ...) __builtin_shuffle(a, b, EightIndices{__VA_ARGS__})
#define DG_SHUFFLE_SIXTEEN(a, b, ...) __builtin_shuffle(a, b, SixteenIndices{__VA_ARGS__})
#endif
typedef float Vec __attribute__((vector_size(DG_VECTOR_BYTES)));
typedef float VecInMemory __attribute__((vector_size(DG_VECTOR_BYTES), aligned(4), may_alias));

typedef uint16_t Half;  // the upper half of a float
typedef int8_t Byte;    // a whole number, to be multiplied by the scale of its output
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "half and byte panels are read as on little-endian machines"
#endif
#if defined(__AVX2__)
typedef Half HalvesInMemory __attribute__((vector_size(DG_VECTOR_BYTES / 2), aligned(2), may_alias));
typedef uint32_t Bits __attribute__((vector_size(DG_VECTOR_BYTES)));
#else
typedef Half Halves __attribute__((vector_size(DG_VECTOR_BYTES)));
typedef Half HalvesInMemory __attribute__((vector_size(DG_VECTOR_BYTES), aligned(2), may_alias));
typedef Byte Bytes __attribute__((vector_size(DG_VECTOR_BYTES)));
typedef Byte BytesInMemory __attribute__((vector_size(DG_VECTOR_BYTES), aligned(1), may_alias));
#endif
typedef int32_t Ints __attribute__((vector_size(DG_VECTOR_BYTES)));

DG_INLINE Vec load(const float* p) { return *reinterpret_cast<const VecInMemory*>(p); }
// The weights of one row of a panel.
DG_INLINE void load_row(const float* p, Vec (&row)[kVectors16]) {
  DG_UNROLL for (int v = 0; v < kVectors16; ++v) row[v] = load(p + v * kLanes);
}
DG_INLINE void load_row(const Half* p, Vec (&row)[kVectors16]) {
#if defined(__AVX2__)
  DG_UNROLL for (int v = 0; v < kVectors16; ++v)
    row[v] = (Vec)(__builtin_convertvector(*reinterpret_cast<const HalvesInMemory*>(p + v * kLanes), Bits) << 16);
#else  // a conversion would be done number by number; eight halves between eight zeros are two vectors of floats
  const Halves zero = {};
  DG_UNROLL for (int v = 0; v < kVectors16; v += 2) {
    const Halves halves = *reinterpret_cast<const HalvesInMemory*>(p + v * kLanes);
    row[v] = (Vec)DG_SHUFFLE_EIGHT(zero, halves, 0, 8, 1, 9, 2, 10, 3, 11);
    row[v + 1] = (Vec)DG_SHUFFLE_EIGHT(zero, halves, 4, 12, 5, 13, 6, 14, 7, 15);
  }
#endif
}
DG_INLINE void load_row(const Byte* p, Vec (&row)[kVectors16]) {
#if defined(__AVX512F__)  // by the vector extensions, gcc would widen number by number
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  row[0] = __builtin_convertvector((Ints)_mm512_maskz_cvtepi8_epi32(0xffff, bytes), Vec);  // without a mask, gcc warns
#elif defined(__AVX2__)
  DG_UNROLL for (int v = 0; v < kVectors16; ++v) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + v * kLanes));
    row[v] = __builtin_convertvector((Ints)_mm256_cvtepi8_epi32(bytes), Vec);
  }
#else  // as above: each byte becomes the upper one of two, those the upper half of four, and a shift brings them down
  const Bytes zero = {}, bytes = *reinterpret_cast<const BytesInMemory*>(p);
  const Halves none = {};
  const Halves pairs[2] = {
      (Halves)DG_SHUFFLE_SIXTEEN(zero, bytes, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
      (Halves)DG_SHUFFLE_SIXTEEN(zero, bytes, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)};
  DG_UNROLL for (int v = 0; v < kVectors16; v += 2) {
    const Ints low = (Ints)DG_SHUFFLE_EIGHT(none, pairs[v / 2], 0, 8, 1, 9, 2, 10, 3, 11);
    const Ints high = (Ints)DG_SHUFFLE_EIGHT(none, pairs[v / 2], 4, 12, 5, 13, 6, 14, 7, 15);
    row[v] = __builtin_convertvector(low >> 24, Vec), row[v + 1] = __builtin_convertvector(high >> 24, Vec);
  }
#endif
}
DG_INLINE float widened(float value) { return value; }
DG_INLINE float widened(Byte byte) { return byte; }
DG_INLINE float widened(Half half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
DG_INLINE void store(float* p, Vec v) { *reinterpret_cast<VecInMemory*>(p) = v; }
// Adds pairwise, one half to the other: in a chain, each addition would wait for the one before.
#if defined(__AVX2__)
DG_INLINE float sum(Vec v) {  // of the loop below, gcc makes three times as many instructions
#if defined(__AVX512F__)  // without masks, gcc warns
  const __m256 eight = (__m256)_mm512_maskz_extractf64x4_pd(0xff, (__m512d)v, 0) +
                       (__m256)_mm512_maskz_extractf64x4_pd(0xff, (__m512d)v, 1);
#else
  const __m256 eight = (__m256)v;
#endif
  const __m128 four = _mm256_castps256_ps128(eight) + _mm256_extractf128_ps(eight, 1);
  const __m128 two = four + _mm_movehl_ps(four, four);
  return two[0] + two[1];
}
#else
DG_INLINE float sum(Vec v) {
  float part[kLanes];
  DG_UNROLL for (int i = 0; i < kLanes; ++i) part[i] = v[i];
  DG_UNROLL for (int half = kLanes / 2; half > 0; half /= 2)
    DG_UNROLL for (int i = 0; i < half; ++i) part[i] += part[i + half];
  return part[0];
}
#endif
typedef float Four __attribute__((vector_size(16)));
typedef float FourInMemory __attribute__((vector_size(16), aligned(4), may_alias));

// Four values from each of four rows -> four values of all rows at each of four places, `stride` apart.
DG_INLINE void transpose_four(const float* const* row, int64_t offset, float* to, int64_t stride) {
  Four in[4];
  DG_UNROLL for (int i = 0; i < 4; ++i) in[i] = *reinterpret_cast<const FourInMemory*>(row[i] + offset);
  const Four a = DG_SHUFFLE(in[0], in[1], 0, 4, 1, 5), b = DG_SHUFFLE(in[0], in[1], 2, 6, 3, 7);
  const Four c = DG_SHUFFLE(in[2], in[3], 0, 4, 1, 5), d = DG_SHUFFLE(in[2], in[3], 2, 6, 3, 7);
  *reinterpret_cast<FourInMemory*>(to) = DG_SHUFFLE(a, c, 0, 1, 4, 5);
  *reinterpret_cast<FourInMemory*>(to + stride) = DG_SHUFFLE(a, c, 2, 3, 6, 7);
  *reinterpret_cast<FourInMemory*>(to + 2 * stride) = DG_SHUFFLE(b, d, 0, 1, 4, 5);
  *reinterpret_cast<FourInMemory*>(to + 3 * stride) = DG_SHUFFLE(b, d, 2, 3, 6, 7);
}

// As many rows as a panel is wide, of `count` values each -> [count][16].
DG_INLINE void transpose_sixteen(const float* const* row, int count, float* to) {
  using dynamicgate::kPanel;
  const int fours = count / 4 * 4;
  for (int k = 0; k < fours; k += 4)
    for (int m = 0; m < kPanel; m += 4) transpose_four(row + m, k, to + static_cast<int64_t>(k) * kPanel + m, kPanel);
  for (int k = fours; k < count; ++k)
    for (int m = 0; m < kPanel; ++m) to[static_cast<int64_t>(k) * kPanel + m] = row[m][k];
}

template <class T>
constexpr T least(T a, T b) {
  return a < b ? a : b;
}
template <class T>
constexpr T most(T a, T b) {
  return a < b ? b : a;
}

}  // namespace
