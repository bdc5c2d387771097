// SPDX-License-Identifier: Apache-2.0
//
// Stands in for the CUDA toolkit's header of this name: what our kernels use of
// the device's built-in variables and functions. Global memory is watched only
// where it is accessed through the loads and stores below, so kernels are to
// use these everywhere.

#ifndef JAXLOAD_TESTS_CUDA_EMULATION_CUDA_RUNTIME_H_
#define JAXLOAD_TESTS_CUDA_EMULATION_CUDA_RUNTIME_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda_runtime_api.h"
#include "emulator.h"

// Set anew at every switch between threads.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;
extern const int warpSize;

namespace cuda_emulation {

template <typename To, typename From>
To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From), "expected types of the same size");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <typename T, typename... Types>
constexpr bool kIsOneOf = (std::is_same_v<T, Types> || ...);

// What CUDA overloads __ldg and its kin for, save its rarer vectors.
template <typename T>
constexpr bool kIsWord =
    kIsOneOf<T, char, signed char, unsigned char, short, unsigned short, int,
             unsigned int, long, unsigned long, long long, unsigned long long,
             float, double, uchar4, ushort2, ushort4, int2, int4, uint2, uint4,
             float2, float4>;

template <typename T>
__forceinline__ T Load(const T* address, Access access, SourceLine where) {
  static_assert(kIsWord<T>, "CUDA has no such load");
  CheckAccess(address, sizeof(T), access, where);
  T value;
  std::memcpy(&value, address, sizeof(T));
  return value;
}

template <typename T>
__forceinline__ void Store(T* address, T value, SourceLine where) {
  static_assert(kIsWord<T>, "CUDA has no such store");
  CheckAccess(address, sizeof(T), Access::kStore, where);
  std::memcpy(address, &value, sizeof(T));
}

template <typename T>
__forceinline__ T Shuffle(Operation operation, unsigned int mask, T value,
                          int source, SourceLine where) {
  static_assert(kIsOneOf<T, int, unsigned int, long, unsigned long, long long,
                         unsigned long long, float, double>,
                "CUDA has no such shuffle");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = Rendezvous(operation, mask, source, bits, where);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace cuda_emulation

// Calls are told apart by their line in the source and not by their address,
// because the compiler may copy a call.

template <typename T>
__forceinline__ T __ldg(const T* address, cuda_emulation::SourceLine where =
                                              cuda_emulation::Here()) {
  return cuda_emulation::Load(address, cuda_emulation::Access::kLoadReadOnly,
                              where);
}
#define CUDA_EMULATION_LOAD(name)                                             \
  template <typename T>                                                       \
  __forceinline__ T name(const T* address, cuda_emulation::SourceLine where = \
                                               cuda_emulation::Here()) {      \
    return cuda_emulation::Load(address, cuda_emulation::Access::kLoad,       \
                                where);                                       \
  }
#define CUDA_EMULATION_STORE(name)                                 \
  template <typename T>                                            \
  __forceinline__ void name(                                       \
      T* address, T value,                                         \
      cuda_emulation::SourceLine where = cuda_emulation::Here()) { \
    cuda_emulation::Store(address, value, where);                  \
  }
CUDA_EMULATION_LOAD(__ldca)
CUDA_EMULATION_LOAD(__ldcg)
CUDA_EMULATION_LOAD(__ldcs)
CUDA_EMULATION_STORE(__stcg)
CUDA_EMULATION_STORE(__stcs)
CUDA_EMULATION_STORE(__stwb)
#undef CUDA_EMULATION_LOAD
#undef CUDA_EMULATION_STORE

inline void __syncthreads(
    cuda_emulation::SourceLine where = cuda_emulation::Here()) {
  cuda_emulation::Barrier(where);
}

inline void __syncwarp(
    unsigned int mask = 0xffffffff,
    cuda_emulation::SourceLine where = cuda_emulation::Here()) {
  const int lane = cuda_emulation::Lane();
  cuda_emulation::Rendezvous(cuda_emulation::Operation::kSyncWarp, mask, lane,
                             0, where);
}

// Lanes exchange values within segments of `width`, a power of two.

template <typename T>
__forceinline__ T
__shfl_sync(unsigned int mask, T value, int source, int width = 32,
            cuda_emulation::SourceLine where = cuda_emulation::Here()) {
  const int first = cuda_emulation::Lane() & -width;
  return cuda_emulation::Shuffle(cuda_emulation::Operation::kShuffle, mask,
                                 value, first + (source & (width - 1)), where);
}

template <typename T>
__forceinline__ T
__shfl_up_sync(unsigned int mask, T value, unsigned int delta, int width = 32,
               cuda_emulation::SourceLine where = cuda_emulation::Here()) {
  const int lane = cuda_emulation::Lane();
  const bool inside = delta <= static_cast<unsigned int>(lane & (width - 1));
  return cuda_emulation::Shuffle(cuda_emulation::Operation::kShuffleUp, mask,
                                 value, inside ? lane - int(delta) : lane,
                                 where);
}

template <typename T>
__forceinline__ T
__shfl_down_sync(unsigned int mask, T value, unsigned int delta, int width = 32,
                 cuda_emulation::SourceLine where = cuda_emulation::Here()) {
  const int lane = cuda_emulation::Lane();
  const bool inside =
      delta < static_cast<unsigned int>(width - (lane & (width - 1)));
  return cuda_emulation::Shuffle(cuda_emulation::Operation::kShuffleDown, mask,
                                 value, inside ? lane + int(delta) : lane,
                                 where);
}

template <typename T>
__forceinline__ T
__shfl_xor_sync(unsigned int mask, T value, int lane_mask, int width = 32,
                cuda_emulation::SourceLine where = cuda_emulation::Here()) {
  const int lane = cuda_emulation::Lane();
  // Earlier segments may be read, later ones not.
  const bool inside = (lane ^ lane_mask) < (lane & -width) + width;
  return cuda_emulation::Shuffle(cuda_emulation::Operation::kShuffleXor, mask,
                                 value, inside ? lane ^ lane_mask : lane,
                                 where);
}

inline unsigned int __float_as_uint(float x) {
  return cuda_emulation::BitCast<unsigned int>(x);
}
inline int __float_as_int(float x) { return cuda_emulation::BitCast<int>(x); }
inline float __uint_as_float(unsigned int x) {
  return cuda_emulation::BitCast<float>(x);
}
inline float __int_as_float(int x) { return cuda_emulation::BitCast<float>(x); }

// Exactly rounded, given that the compiler fuses nothing (-ffp-contract=off).
// CUDA's division and square roots without _rn are off by an ulp or two.
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) {
  return static_cast<float>(1.0 / sqrt(static_cast<double>(x)));
}
inline float __fdividef(float x, float y) { return x / y; }
#define rsqrtf \
  __frsqrt_rn  // A macro, because newer C libraries declare rsqrtf.

#define CUDA_EMULATION_MIN_MAX(T)                     \
  constexpr T min(T x, T y) { return y < x ? y : x; } \
  constexpr T max(T x, T y) { return x < y ? y : x; }
CUDA_EMULATION_MIN_MAX(int)
CUDA_EMULATION_MIN_MAX(unsigned int)
CUDA_EMULATION_MIN_MAX(long)
CUDA_EMULATION_MIN_MAX(unsigned long)
CUDA_EMULATION_MIN_MAX(long long)
CUDA_EMULATION_MIN_MAX(unsigned long long)
#undef CUDA_EMULATION_MIN_MAX
// Unlike the others, these drop a NaN.
inline float min(float x, float y) { return fminf(x, y); }
inline float max(float x, float y) { return fmaxf(x, y); }
inline double min(double x, double y) { return fmin(x, y); }
inline double max(double x, double y) { return fmax(x, y); }

// clang-format off
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned int x, unsigned int y) { return {x, y}; }
inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline ushort2 make_ushort2(unsigned short x, unsigned short y) { return {x, y}; }
inline ushort4 make_ushort4(unsigned short x, unsigned short y, unsigned short z, unsigned short w) { return {x, y, z, w}; }
// clang-format on

#endif  // JAXLOAD_TESTS_CUDA_EMULATION_CUDA_RUNTIME_H_
