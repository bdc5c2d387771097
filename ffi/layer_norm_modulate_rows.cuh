// SPDX-License-Identifier: Apache-2.0
//
// Memory access of the CUDA kernels of layer_norm_modulate: conversion between
// storage types and float, single values, and the columns of a row that a
// thread holds in registers.
//
// Global memory is accessed only through intrinsics with cache hints: rows that
// are read once stream past the cache, and the emulation in
// tests/cuda_emulation can check and count every access.

#ifndef JAXLOAD_FFI_LAYER_NORM_MODULATE_ROWS_CUH_
#define JAXLOAD_FFI_LAYER_NORM_MODULATE_ROWS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "layer_norm_modulate.h"

namespace jaxload::cuda {

// --- Storage types -----------------------------------------------------------

// A 32-bit word holds one float or a pair of 16-bit floats, the lower half
// first.
__device__ __forceinline__ void Unpack(unsigned word, float, float* values) {
  values[0] = __uint_as_float(word);
}
__device__ __forceinline__ void Unpack(unsigned word, BFloat16, float* values) {
  values[0] = __uint_as_float(word << 16);
  values[1] = __uint_as_float(word & 0xffff0000);
}
__device__ __forceinline__ void Unpack(unsigned word, Float16, float* values) {
  values[0] = __half2float(__ushort_as_half(word & 0xffff));
  values[1] = __half2float(__ushort_as_half(word >> 16));
}

__device__ __forceinline__ unsigned Pack(const float* values, float) {
  return __float_as_uint(values[0]);
}
__device__ __forceinline__ unsigned Pack(const float* values, BFloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(values[0], values[1]);
  unsigned word;
  std::memcpy(&word, &pair, sizeof(word));
  return word;
}
__device__ __forceinline__ unsigned Pack(const float* values, Float16) {
  const __half2 pair = __floats2half2_rn(values[0], values[1]);
  unsigned word;
  std::memcpy(&word, &pair, sizeof(word));
  return word;
}

// The values that one load or store moves: 16 bytes, the widest access there
// is, or a single value if rows are not aligned to that.
template <typename T, bool kVectorized>
struct Packet {
  static constexpr int kValues = 16 / sizeof(T);
  using Raw = uint4;

  __device__ __forceinline__ static void ToFloats(const Raw& raw,
                                                  float* values) {
    constexpr int kPerWord = 4 / sizeof(T);
    Unpack(raw.x, T{}, values);
    Unpack(raw.y, T{}, values + kPerWord);
    Unpack(raw.z, T{}, values + 2 * kPerWord);
    Unpack(raw.w, T{}, values + 3 * kPerWord);
  }
  __device__ __forceinline__ static Raw FromFloats(const float* values) {
    constexpr int kPerWord = 4 / sizeof(T);
    return make_uint4(Pack(values, T{}), Pack(values + kPerWord, T{}),
                      Pack(values + 2 * kPerWord, T{}),
                      Pack(values + 3 * kPerWord, T{}));
  }
};

template <typename T>
struct Packet<T, false> {
  static constexpr int kValues = 1;
  using Raw = std::conditional_t<sizeof(T) == 4, unsigned int, unsigned short>;

  __device__ __forceinline__ static void ToFloats(Raw raw, float* values) {
    float pair[2];
    Unpack(raw, T{}, pair);
    values[0] = pair[0];
  }
  __device__ __forceinline__ static Raw FromFloats(const float* values) {
    const float pair[2] = {values[0], 0};
    return static_cast<Raw>(Pack(pair, T{}));
  }
};

// --- Single values -----------------------------------------------------------

// Loads through L2, which holds the latest stores: wide rows are read again
// after they were written.
template <typename T>
__device__ __forceinline__ float LoadValue(const T* from) {
  using One = Packet<T, false>;
  float value;
  One::ToFloats(__ldcg(reinterpret_cast<const typename One::Raw*>(from)),
                &value);
  return value;
}

template <typename T>
__device__ __forceinline__ void StoreValue(T* to, float value) {
  using One = Packet<T, false>;
  __stwb(reinterpret_cast<typename One::Raw*>(to), One::FromFloats(&value));
}

// Returns x + gate * h rounded to T, as the forward pass stores it. The fused
// multiply-add is explicit because the backward pass, which computes the
// residual again, must get the same bits whatever the compiler would contract.
template <typename T>
__device__ __forceinline__ float Residual(float x, float gate, float h) {
  using One = Packet<T, false>;
  float value = __fmaf_rn(gate, h, x);
  One::ToFloats(One::FromFloats(&value), &value);
  return value;
}

// Returns the value that is normalized, x or, gated, the residual, in one
// column of the row that starts at `row`. Without a gate, h and gate are null.
template <bool kGated, typename T>
__device__ __forceinline__ float LoadNormalized(const T* x, const T* h,
                                                const float* gate, int64_t row,
                                                int64_t column) {
  float value = LoadValue(x + row + column);
  if constexpr (kGated) {
    value =
        Residual<T>(value, __ldg(gate + column), LoadValue(h + row + column));
  }
  return value;
}

// --- Columns of a thread -----------------------------------------------------

// The columns of a row that one thread of a team holds. Its packets are as far
// apart as the team is wide, so that a warp accesses contiguous memory.
template <typename T, bool kVectorized, int kColumns>
struct Columns {
  using OnePacket = Packet<T, kVectorized>;
  static constexpr int kPerPacket = OnePacket::kValues;
  static constexpr int kPackets = kColumns / kPerPacket;

  // Loaded values that are not converted yet: a 16-bit type takes half the
  // registers of floats.
  struct Raw {
    typename OnePacket::Raw packets[kPackets];
  };

  int width;

  __device__ __forceinline__ int Offset(int packet) const {
    return (packet * blockDim.x + threadIdx.x) * kPerPacket;
  }
  // No packet crosses the end of a row: see `IsVectorizable`.
  __device__ __forceinline__ bool Holds(int packet) const {
    return Offset(packet) < width;
  }

  // Columns beyond the end of the row are 0; all are, unless `is_row`.
  __device__ __forceinline__ Raw Load(const T* row, bool is_row) const {
    Raw raw = {};
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
      if (is_row && Holds(i)) {
        raw.packets[i] = __ldcs(
            reinterpret_cast<const typename OnePacket::Raw*>(row + Offset(i)));
      }
    }
    return raw;
  }

  __device__ __forceinline__ static void ToFloats(const Raw& raw,
                                                  float (&values)[kColumns]) {
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
      OnePacket::ToFloats(raw.packets[i], values + i * kPerPacket);
    }
  }

  __device__ __forceinline__ void Store(const float (&values)[kColumns],
                                        T* row) const {
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
      if (Holds(i)) {
        __stwb(reinterpret_cast<typename OnePacket::Raw*>(row + Offset(i)),
               OnePacket::FromFloats(values + i * kPerPacket));
      }
    }
  }

  // Modulations and sums are float whatever T is. Columns beyond the end of the
  // row are 0.
  __device__ __forceinline__ void LoadFloats(const float* row,
                                             float (&values)[kColumns]) const {
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
      const float* from = row + Offset(i);
      float* to = values + i * kPerPacket;
      if constexpr (kVectorized) {
#pragma unroll
        for (int j = 0; j < kPerPacket; j += 4) {
          float4 four = {};
          if (Holds(i)) four = __ldg(reinterpret_cast<const float4*>(from + j));
          to[j] = four.x;
          to[j + 1] = four.y;
          to[j + 2] = four.z;
          to[j + 3] = four.w;
        }
      } else {
        to[0] = Holds(i) ? __ldg(from) : 0;
      }
    }
  }

  __device__ __forceinline__ void StoreFloats(const float (&values)[kColumns],
                                              float* row) const {
#pragma unroll
    for (int i = 0; i < kPackets; ++i) {
      if (!Holds(i)) continue;
      const float* from = values + i * kPerPacket;
      float* to = row + Offset(i);
      if constexpr (kVectorized) {
#pragma unroll
        for (int j = 0; j < kPerPacket; j += 4) {
          __stwb(reinterpret_cast<float4*>(to + j),
                 make_float4(from[j], from[j + 1], from[j + 2], from[j + 3]));
        }
      } else {
        __stwb(to, from[0]);
      }
    }
  }
};

// Replaces scale by the factor 1 + scale.
template <int kColumns>
__device__ __forceinline__ void ToGain(float (&scale)[kColumns]) {
#pragma unroll
  for (int i = 0; i < kColumns; ++i) scale[i] += 1;
}

// Replaces x by the residual x + gate * h, rounded to T.
template <typename T, int kColumns>
__device__ __forceinline__ void AddGated(const float (&gate)[kColumns],
                                         const float (&h)[kColumns],
                                         float (&x)[kColumns]) {
#pragma unroll
  for (int i = 0; i < kColumns; ++i) x[i] = Residual<T>(x[i], gate[i], h[i]);
}

}  // namespace jaxload::cuda

#endif  // JAXLOAD_FFI_LAYER_NORM_MODULATE_ROWS_CUH_
