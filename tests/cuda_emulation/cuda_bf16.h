// SPDX-License-Identifier: Apache-2.0
//
// Stands in for the CUDA toolkit's header of this name: conversions only.

#ifndef JAXLOAD_TESTS_CUDA_EMULATION_CUDA_BF16_H_
#define JAXLOAD_TESTS_CUDA_EMULATION_CUDA_BF16_H_

#include "cuda_runtime.h"

struct __nv_bfloat16 {
  unsigned short bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  return {bits};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }

inline float __bfloat162float(__nv_bfloat16 x) {
  return __uint_as_float(static_cast<unsigned int>(x.bits) << 16);
}

// To nearest, ties to even; every NaN becomes the same one, as on the device.
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  const unsigned int bits = __float_as_uint(x);
  if (x != x) return {0x7fff};
  return {
      static_cast<unsigned short>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
inline __nv_bfloat16 __float2bfloat16(float x) {
  return __float2bfloat16_rn(x);
}

inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 x) {
  return __floats2bfloat162_rn(x.x, x.y);
}
inline float2 __bfloat1622float2(__nv_bfloat162 x) {
  return {__bfloat162float(x.x), __bfloat162float(x.y)};
}

#endif  // JAXLOAD_TESTS_CUDA_EMULATION_CUDA_BF16_H_
