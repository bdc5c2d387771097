// SPDX-License-Identifier: Apache-2.0
//
// Vectors of floats, stored in memory as float or as a 16-bit float, and loops
// over the elements of rows.
//
// Files that include this header are compiled for instruction sets that not
// every machine has. Of an inline function, the linker keeps one copy for all
// files, and that copy might use such instructions. So everything here is in an
// anonymous namespace, and no function of the standard library is called.

#ifndef JAXLOAD_FFI_VECTORS_H_
#define JAXLOAD_FFI_VECTORS_H_

#include <cstdint>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "layer_norm_modulate.h"

namespace jaxload {
namespace {

#if defined(__AVX512F__)
constexpr int64_t kLanes = 16;
#elif defined(__AVX2__)
constexpr int64_t kLanes = 8;
#else
constexpr int64_t kLanes = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));

template <typename To, typename From>
inline To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

template <typename Vector>
inline Vector LoadAs(const void* from) {
  Vector vector;
  __builtin_memcpy(&vector, from, sizeof(vector));
  return vector;
}

// --- Conversions -----------------------------------------------------------
//
// These convert one number (Float = float) or a vector (Float = Floats). A
// 16-bit float is in the low half of a word. No intermediate float may be
// subnormal, because XLA's threads flush subnormals to 0.

template <typename Float>
struct WordFor;
template <>
struct WordFor<float> {
  using Type = uint32_t;
};
template <>
struct WordFor<Floats> {
  using Type = Words;
};
template <typename Float>
using Word = typename WordFor<Float>::Type;

template <typename Float>
inline Float ToFloat(Word<Float> bits, BFloat16) {
  return BitCast<Float>(bits << 16);
}

template <typename Float>
inline Float ToFloat(Word<Float> bits, Float16) {
  constexpr uint32_t kInfinity = 0x7c00 << 13;
  constexpr uint32_t kSmallestNormal = 0x0400 << 13;
  constexpr uint32_t kRebias = (127 - 15) << 23;
  const Word<Float> sign = (bits & 0x8000) << 16;
  const Word<Float> magnitude = (bits & 0x7fff) << 13;
  // A subnormal, m * 2^-24, has an exponent field of 0. Read with the smallest
  // normal exponent, it is too large by exactly 2^-14.
  const Float subnormal =
      BitCast<Float>(magnitude + (kSmallestNormal + kRebias)) - 0x1p-14f;
  const Word<Float> finite = magnitude + kRebias;
  const Word<Float> normal = magnitude >= kInfinity ? finite + kRebias : finite;
  const Word<Float> result =
      magnitude < kSmallestNormal ? BitCast<Word<Float>>(subnormal) : normal;
  return BitCast<Float>(result | sign);
}

// The conversions below round to nearest, ties to even.

template <typename Float>
inline Word<Float> FromFloat(Float value, BFloat16) {
  const Word<Float> bits = BitCast<Word<Float>>(value);
  const Word<Float> rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const Word<Float> quiet_nan = bits | 0x400000;
  return (value == value ? rounded : quiet_nan) >> 16;
}

template <typename Float>
inline Word<Float> FromFloat(Float value, Float16) {
  constexpr uint32_t kFloatInfinity = 0x7f800000;
  constexpr uint32_t kOverflow = (127 + 16) << 23;
  constexpr uint32_t kSmallestNormal = (127 - 14) << 23;
  constexpr uint32_t kRebias = (127 - 15) << 23;
  constexpr uint32_t kHalf = 0x3f000000;  // 0.5f.
  const Word<Float> all = BitCast<Word<Float>>(value);
  const Word<Float> bits = all & 0x7fffffff;
  // A carry into the exponent is intended: 65520 and above round to infinity.
  const Word<Float> normal =
      (bits - kRebias + 0xfff + ((bits >> 13) & 1)) >> 13;
  // The last bit of a float in [0.5, 1) is 2^-24, as is the last bit of a
  // 16-bit subnormal, so that adding 0.5 rounds correctly.
  const Word<Float> subnormal =
      BitCast<Word<Float>>(BitCast<Float>(bits) + 0.5f) - kHalf;
  const Word<Float> infinity = bits - bits + 0x7c00;
  const Word<Float> special =
      bits > kFloatInfinity ? infinity + 0x200 : infinity;
  const Word<Float> finite = bits < kSmallestNormal ? subnormal : normal;
  const Word<Float> magnitude = bits >= kOverflow ? special : finite;
  return magnitude | ((all >> 16) & 0x8000);
}

// --- Vectors ---------------------------------------------------------------

#if defined(__AVX512F__)

// Mask of all lanes. Intrinsics without a mask use a variable that the compiler
// reports as uninitialized.
constexpr __mmask16 kAll = 0xffff;

inline Words Widen(Halves halves) {
  return (Words)_mm512_maskz_cvtepu16_epi32(kAll, (__m256i)halves);
}

inline Halves Narrow(Words words) {
  return (Halves)_mm512_maskz_cvtepi32_epi16(kAll, (__m512i)words);
}

inline Floats ToFloats(Halves halves, Float16) {
  return (Floats)_mm512_maskz_cvtph_ps(kAll, (__m256i)halves);
}

inline Halves FromFloats(Floats values, Float16) {
  return (Halves)_mm512_maskz_cvtps_ph(kAll, (__m512)values,
                                       _MM_FROUND_TO_NEAREST_INT);
}

#elif defined(__AVX2__)

inline Words Widen(Halves halves) {
  return (Words)_mm256_cvtepu16_epi32((__m128i)halves);
}

// Requires words below 2^16.
inline Halves Narrow(Words words) {
  const __m128i low = _mm256_castsi256_si128((__m256i)words);
  const __m128i high = _mm256_extracti128_si256((__m256i)words, 1);
  return (Halves)_mm_packus_epi32(low, high);
}

inline Floats ToFloats(Halves halves, Float16) {
  return (Floats)_mm256_cvtph_ps((__m128i)halves);
}

inline Halves FromFloats(Floats values, Float16) {
  return (Halves)_mm256_cvtps_ph((__m256)values, _MM_FROUND_TO_NEAREST_INT);
}

#else

inline Words Widen(Halves halves) {
  return __builtin_convertvector(halves, Words);
}

inline Halves Narrow(Words words) {
  return __builtin_convertvector(words, Halves);
}

inline Floats ToFloats(Halves halves, Float16) {
  return ToFloat<Floats>(Widen(halves), Float16());
}

inline Halves FromFloats(Floats values, Float16) {
  return Narrow(FromFloat<Floats>(values, Float16()));
}

#endif

inline Floats ToFloats(Halves halves, BFloat16) {
  return ToFloat<Floats>(Widen(halves), BFloat16());
}

inline Halves FromFloats(Floats values, BFloat16) {
  return Narrow(FromFloat<Floats>(values, BFloat16()));
}

// --- Memory ----------------------------------------------------------------

// How to store results that are not read again soon. Streamed stores bypass the
// caches: no line is fetched only to be overwritten, or evicted.
enum class Output { kCached, kStreamed };

inline void Stream(Floats values, float* to) {
#if defined(__AVX512F__)
  _mm512_stream_ps(to, (__m512)values);
#elif defined(__AVX2__)
  _mm256_stream_ps(to, (__m256)values);
#elif defined(__SSE2__)
  _mm_stream_ps(to, (__m128)values);
#else
  __builtin_memcpy(to, &values, sizeof(values));
#endif
}

inline void Stream(Halves halves, void* to) {
#if defined(__AVX512F__)
  _mm256_stream_si256(static_cast<__m256i*>(to), (__m256i)halves);
#elif defined(__AVX2__)
  _mm_stream_si128(static_cast<__m128i*>(to), (__m128i)halves);
#elif defined(__SSE2__)
  _mm_stream_si64(static_cast<long long*>(to), (long long)halves);
#else
  __builtin_memcpy(to, &halves, sizeof(halves));
#endif
}

// Returns true if the vectors of all rows from `to` on are aligned, as streamed
// stores require.
template <typename T>
inline bool IsAligned(const T* to, int64_t width) {
  constexpr uint64_t kBytes = kLanes * sizeof(T);
  return reinterpret_cast<uintptr_t>(to) % kBytes == 0 &&
         width * sizeof(T) % kBytes == 0;
}

// Makes streamed stores visible to other threads.
inline void EndStream() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

// Access to the elements of a row: a vector at a time, or a single element.
// Consecutive vectors are added to different banks of sums, so that an addition
// need not wait for the previous one.

template <int bank>
struct VectorAccess {
  static Floats Load(const float* from) { return LoadAs<Floats>(from); }

  template <typename T>
  static Floats Load(const T* from) {
    return ToFloats(LoadAs<Halves>(from), T());
  }

  template <Output output = Output::kCached>
  static void Store(Floats values, float* to) {
    if constexpr (output == Output::kStreamed) return Stream(values, to);
    __builtin_memcpy(to, &values, sizeof(values));
  }

  template <Output output = Output::kCached, typename T>
  static void Store(Floats values, T* to) {
    const Halves halves = FromFloats(values, T());
    if constexpr (output == Output::kStreamed) return Stream(halves, to);
    __builtin_memcpy(to, &halves, sizeof(halves));
  }
};

struct ElementAccess {
  static float Load(const float* from) { return *from; }

  template <typename T>
  static float Load(const T* from) {
    return ToFloat<float>(from->bits, T());
  }

  template <Output = Output::kCached>
  static void Store(float value, float* to) {
    *to = value;
  }

  template <Output = Output::kCached, typename T>
  static void Store(float value, T* to) {
    to->bits = static_cast<uint16_t>(FromFloat<float>(value, T()));
  }
};

// --- Rows ------------------------------------------------------------------

// Float addition is not associative, so the order of additions must be the same
// for all vector widths: element i is added to sum i % kNumSums, then the sums
// are added in pairs.
constexpr int64_t kNumSums = 32;
constexpr int kNumBanks = kNumSums / kLanes;

template <int bank, typename Body>
inline void ForEachBank(int64_t d, const Body& body) {
  if constexpr (bank < kNumBanks) {
    body(VectorAccess<bank>(), d + bank * kLanes);
    ForEachBank<bank + 1>(d, body);
  }
}

// Calls body(access, d) for all elements of a row; `access` loads and stores
// the elements that start at d.
template <typename Body>
inline void ForEachElement(int64_t width, const Body& body) {
  int64_t d = 0;
  for (; d + kNumSums <= width; d += kNumSums) ForEachBank<0>(d, body);
  for (; d < width; ++d) body(ElementAccess(), d);
}

// Adds elements i and i + size / 2 for all i, and repeats until one is left.
template <int size>
inline float SumInPairs(const float* elements) {
  if constexpr (size == 2) {
    return elements[0] + elements[1];
  } else {
    typedef float Half __attribute__((vector_size(2 * size)));
    Half first, second;
    __builtin_memcpy(&first, elements, sizeof(first));
    __builtin_memcpy(&second, elements + size / 2, sizeof(second));
    const Half sums = first + second;
    return SumInPairs<size / 2>(reinterpret_cast<const float*>(&sums));
  }
}

// Sum over the elements of a row.
class Sum {
 public:
  template <int bank>
  void Add(VectorAccess<bank>, Floats terms) {
    banks_[bank] += terms;
  }

  void Add(ElementAccess, float term) { rest_ += term; }

  float Total() const {
    return SumInPairs<kNumSums>(reinterpret_cast<const float*>(banks_)) + rest_;
  }

 private:
  Floats banks_[kNumBanks] = {};
  float rest_ = 0;
};

}  // namespace
}  // namespace jaxload

#endif  // JAXLOAD_FFI_VECTORS_H_
