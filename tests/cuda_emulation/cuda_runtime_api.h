// SPDX-License-Identifier: Apache-2.0
//
// Stands in for the CUDA toolkit's header of this name: the host's part of the
// runtime, as far as our launchers use it, for the device of emulator.h.

#ifndef JAXLOAD_TESTS_CUDA_EMULATION_CUDA_RUNTIME_API_H_
#define JAXLOAD_TESTS_CUDA_EMULATION_CUDA_RUNTIME_API_H_

#include <cstddef>
#include <utility>

#define __host__
#define __device__
#define __global__
#define __constant__
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
// One object per operating system thread, and blocks run on one of them. Unlike
// statics in a named section, these may lie in templates, and the emulator
// finds all of them, to poison them, in the library's TLS segment.
#define __shared__ thread_local

// Values are those of CUDA.
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotSupported = 801,
  cudaErrorUnknown = 999,
};

enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrL2CacheSize = 38,
  cudaDevAttrMaxThreadsPerMultiProcessor = 39,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrMaxBlocksPerMultiprocessor = 106,
};

enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9,
};

using cudaStream_t = struct CUstream_st*;

// clang-format off
struct alignas(4) uchar4 { unsigned char x, y, z, w; };
struct alignas(4) ushort2 { unsigned short x, y; };
struct alignas(8) ushort4 { unsigned short x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned int x, y; };
struct uint3 { unsigned int x, y, z; };
struct alignas(16) uint4 { unsigned int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
// clang-format on

struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1)
      : x(x), y(y), z(z) {}
};

struct cudaLaunchAttribute;

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned int numAttrs;
};

const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                   int device);

namespace cuda_emulation {

// Runs `thread` once for every thread of the grid.
cudaError_t Launch(const cudaLaunchConfig_t& config, const void* kernel,
                   void (*thread)(void* context), void* context);
cudaError_t SetAttribute(const void* kernel, cudaFuncAttribute attribute,
                         int value);
cudaError_t MaxActiveBlocks(int* num_blocks, int block_size,
                            size_t dynamic_bytes);

}  // namespace cuda_emulation

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config,
                               void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  // Every thread has parameters of its own, copied from these.
  return [&](Parameters... parameters) {
    auto call = [&] { kernel(parameters...); };
    return cuda_emulation::Launch(
        *config, reinterpret_cast<const void*>(kernel),
        [](void* context) { (*static_cast<decltype(call)*>(context))(); },
        &call);
  }(std::forward<Arguments>(arguments)...);
}

template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...),
                                 cudaFuncAttribute attribute, int value) {
  return cuda_emulation::SetAttribute(reinterpret_cast<const void*>(kernel),
                                      attribute, value);
}

template <typename... Parameters>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    int* num_blocks, void (*)(Parameters...), int block_size,
    size_t dynamic_bytes) {
  return cuda_emulation::MaxActiveBlocks(num_blocks, block_size, dynamic_bytes);
}

#endif  // JAXLOAD_TESTS_CUDA_EMULATION_CUDA_RUNTIME_API_H_
