// SPDX-License-Identifier: Apache-2.0
//
// Stands in for the CUDA toolkit's header of this name: conversions only.

#ifndef JAXLOAD_TESTS_CUDA_EMULATION_CUDA_FP16_H_
#define JAXLOAD_TESTS_CUDA_EMULATION_CUDA_FP16_H_

#include "cuda_runtime.h"

struct __half {
  unsigned short bits;
};
struct alignas(4) __half2 {
  __half x, y;
};

inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }

inline float __half2float(__half x) {
  const unsigned int sign = static_cast<unsigned int>(x.bits & 0x8000) << 16;
  const unsigned int magnitude = x.bits & 0x7fff;
  if (magnitude >= 0x7c00) {  // Infinite, or NaN.
    return __uint_as_float(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  }
  // As the bits of a float this is x times 2^-112, also if x is subnormal.
  const float scaled = __uint_as_float(magnitude << 13) * 0x1p112f;
  return __uint_as_float(sign | __float_as_uint(scaled));
}

// To nearest, ties to even; every NaN becomes the same one, as on the device.
inline __half __float2half_rn(float x) {
  if (x != x) return {0x7fff};
  const unsigned int bits = __float_as_uint(x);
  const unsigned int sign = (bits >> 16) & 0x8000;
  const float magnitude = fabsf(x);
  unsigned int result;
  if (magnitude >= 65520.0f) {  // Rounds to 2^16, which is too large.
    result = 0x7c00;
  } else if (magnitude < 0x1p-14f) {
    // Among floats from 0.5 to 1 the spacing is that of half's subnormals, so
    // that the addition rounds.
    result = __float_as_uint(magnitude + 0.5f) - __float_as_uint(0.5f);
  } else {
    const unsigned int rebiased = (bits & 0x7fffffff) - (112u << 23);
    result = (rebiased + 0xfff + ((rebiased >> 13) & 1)) >> 13;
  }
  return {static_cast<unsigned short>(sign | result)};
}
inline __half __float2half(float x) { return __float2half_rn(x); }

inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}
inline __half2 __float22half2_rn(float2 x) {
  return __floats2half2_rn(x.x, x.y);
}
inline float2 __half22float2(__half2 x) {
  return {__half2float(x.x), __half2float(x.y)};
}

#endif  // JAXLOAD_TESTS_CUDA_EMULATION_CUDA_FP16_H_
