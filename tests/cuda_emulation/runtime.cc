// SPDX-License-Identifier: Apache-2.0
//
// The host's side: the CUDA runtime's functions, grids, shared memory, and what
// tests call.

#include <link.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <vector>

#include "cuda_runtime.h"
#include "emulator.h"
#include "fiber.h"
#include "memory.h"
#include "scheduler.h"

constexpr size_t kMaxDynamicBytes = 227 * 1024;
constexpr size_t kRedZoneBytes = 1024;

// What kernels may declare, at global scope and with any type T, as
//   extern __shared__ T dynamic_shared_memory[];
alignas(1024) thread_local char dynamic_shared_memory[kMaxDynamicBytes +
                                                      kRedZoneBytes];

uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;
const int warpSize = cuda_emulation::kLanes;

namespace cuda_emulation {

Options options;

namespace {

constexpr int kMaxBlocksPerSm = 32;
constexpr int kDefaultDynamicBytes = 48 * 1024;
constexpr int kSharedBytesPerSm = 228 * 1024;
constexpr int kReservedBytes = 1024;  // Of a block's shared memory, by CUDA.
constexpr int kPoison = 0xff;         // A NaN in every floating point type.

int num_launches;
cudaError_t last_error;
std::map<const void*, int> dynamic_limits;

cudaError_t SetLastError(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// All that is __shared__: this library's part of the thread's local storage.
struct SharedMemory {
  char* begin;
  char* end;
};

SharedMemory FindSharedMemory() {
  dynamic_shared_memory[0] = 0;  // The storage is made when first touched.
  SharedMemory shared = {};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        char* begin = static_cast<char*>(info->dlpi_tls_data);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          if (info->dlpi_phdr[i].p_type != PT_TLS) continue;
          char* end = begin + info->dlpi_phdr[i].p_memsz;
          if (begin <= dynamic_shared_memory && dynamic_shared_memory < end) {
            *static_cast<SharedMemory*>(result) = {begin, end};
          }
        }
        return 0;
      },
      &shared);
  return shared;
}

void Poison(const SharedMemory& shared, size_t dynamic_bytes) {
  char* dynamic_end = dynamic_shared_memory + sizeof(dynamic_shared_memory);
  std::memset(shared.begin, kPoison, dynamic_shared_memory - shared.begin);
  std::memset(dynamic_shared_memory, kPoison, dynamic_bytes + kRedZoneBytes);
  std::memset(dynamic_end, kPoison, shared.end - dynamic_end);
}

bool IsRedZoneIntact(size_t dynamic_bytes) {
  const char* red_zone = dynamic_shared_memory + dynamic_bytes;
  return std::all_of(red_zone, red_zone + kRedZoneBytes, [](char byte) {
    return static_cast<unsigned char>(byte) == kPoison;
  });
}

cudaError_t CheckConfig(const cudaLaunchConfig_t& config, const void* kernel) {
  const dim3& grid = config.gridDim;
  const dim3& block = config.blockDim;
  const uint64_t num_threads = uint64_t{block.x} * block.y * block.z;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff ||
      grid.y > 65535 || grid.z > 65535 || num_threads == 0 || block.z > 64 ||
      block.x > kMaxFibers || block.y > kMaxFibers ||
      num_threads > kMaxFibers) {
    return cudaErrorInvalidConfiguration;
  }
  const auto found = dynamic_limits.find(kernel);
  const size_t limit =
      found == dynamic_limits.end() ? kDefaultDynamicBytes : found->second;
  return config.dynamicSmemBytes > limit ? cudaErrorInvalidValue : cudaSuccess;
}

// The order in which blocks run.
std::vector<uint32_t> BlockOrder(size_t num_blocks) {
  std::vector<uint32_t> order(num_blocks);
  std::iota(order.begin(), order.end(), 0u);
  for (size_t i = num_blocks; options.seed != 0 && i > 1; --i) {
    std::swap(order[i - 1], order[Random(static_cast<uint32_t>(i))]);
  }
  return order;
}

bool RunGrid(const cudaLaunchConfig_t& config) {
  const size_t dynamic_bytes = config.dynamicSmemBytes;
  int blocks_per_sm;
  MaxActiveBlocks(&blocks_per_sm, blockDim.x * blockDim.y * blockDim.z,
                  dynamic_bytes);
  // These are taken to run at the same time, as far as the cache can tell.
  const int max_resident = std::max(1, blocks_per_sm * options.num_sms);
  int num_resident = 0;
  std::vector<std::vector<uint64_t>> streams;
  const SharedMemory shared = FindSharedMemory();
  if (shared.begin == nullptr) {
    error_text = "cannot find what is __shared__ in the thread's local storage";
    return false;
  }
  for (uint32_t block : BlockOrder(size_t{gridDim.x} * gridDim.y * gridDim.z)) {
    blockIdx = {block % gridDim.x, block / gridDim.x % gridDim.y,
                block / gridDim.x / gridDim.y};
    Poison(shared, dynamic_bytes);
    if (!RunBlock()) return false;
    if (!IsRedZoneIntact(dynamic_bytes)) {
      error_text = "block " + std::to_string(block) + " wrote past its " +
                   std::to_string(dynamic_bytes) +
                   " bytes of dynamic shared memory";
      return false;
    }
    if (!options.counts_traffic) continue;
    TakeStreams(streams);
    if (++num_resident == max_resident) {
      PlayStreams(streams);
      streams.clear();
      num_resident = 0;
    }
  }
  PlayStreams(streams);
  return true;
}

}  // namespace

cudaError_t Launch(const cudaLaunchConfig_t& config, const void* kernel,
                   void (*thread)(void* context), void* context) {
  const int number = num_launches++;
  if (number == options.failing_launch) {
    return SetLastError(static_cast<cudaError_t>(options.launch_error));
  }
  const cudaError_t error = CheckConfig(config, kernel);
  if (error != cudaSuccess) return SetLastError(error);
  gridDim = config.gridDim;
  blockDim = config.blockDim;
  BeginLaunch(blockDim, options.seed + number, thread, context);
  BeginLaunchMemory();
  if (RunGrid(config)) return cudaSuccess;
  error_text = "launch " + std::to_string(number) + ", " + error_text;
  return SetLastError(cudaErrorLaunchFailure);
}

cudaError_t SetAttribute(const void* kernel, cudaFuncAttribute attribute,
                         int value) {
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value < 0 || static_cast<size_t>(value) > kMaxDynamicBytes) {
      return SetLastError(cudaErrorInvalidValue);
    }
    dynamic_limits[kernel] = value;
  }
  return cudaSuccess;
}

cudaError_t MaxActiveBlocks(int* num_blocks, int block_size,
                            size_t dynamic_bytes) {
  if (block_size <= 0 || block_size > kMaxFibers) {
    return SetLastError(cudaErrorInvalidValue);
  }
  const int warps = (block_size + kLanes - 1) / kLanes;
  const size_t by_shared_memory =
      kSharedBytesPerSm / (dynamic_bytes + kReservedBytes);
  *num_blocks = options.blocks_per_sm > 0
                    ? options.blocks_per_sm
                    : std::min({options.threads_per_sm / (warps * kLanes),
                                kMaxBlocksPerSm, int(by_shared_memory)});
  return cudaSuccess;
}

// The device as new: no buffers, nothing in the cache, no error.
CUDA_EMULATION_EXPORT void cuda_emulation_begin(const Options* new_options) {
  options = *new_options;
  num_launches = 0;
  last_error = cudaSuccess;
  error_text.clear();
  ResetMemory();
}

// Empty if nothing went wrong since cuda_emulation_begin.
CUDA_EMULATION_EXPORT const char* cuda_emulation_error() {
  return error_text.c_str();
}

CUDA_EMULATION_EXPORT int cuda_emulation_num_launches() { return num_launches; }

}  // namespace cuda_emulation

CUDA_EMULATION_EXPORT const char* cuda_emulation_error_name(int error) {
  return cudaGetErrorName(static_cast<cudaError_t>(error));
}

const char* cudaGetErrorName(cudaError_t error) {
#define CUDA_EMULATION_NAME(name) \
  if (error == name) return #name
  CUDA_EMULATION_NAME(cudaSuccess);
  CUDA_EMULATION_NAME(cudaErrorInvalidValue);
  CUDA_EMULATION_NAME(cudaErrorMemoryAllocation);
  CUDA_EMULATION_NAME(cudaErrorInvalidConfiguration);
  CUDA_EMULATION_NAME(cudaErrorInvalidDeviceFunction);
  CUDA_EMULATION_NAME(cudaErrorNoDevice);
  CUDA_EMULATION_NAME(cudaErrorInvalidDevice);
  CUDA_EMULATION_NAME(cudaErrorLaunchOutOfResources);
  CUDA_EMULATION_NAME(cudaErrorLaunchFailure);
  CUDA_EMULATION_NAME(cudaErrorNotSupported);
#undef CUDA_EMULATION_NAME
  return "cudaErrorUnknown";
}

const char* cudaGetErrorString(cudaError_t error) {
  return cudaGetErrorName(error);
}

cudaError_t cudaPeekAtLastError() { return cuda_emulation::last_error; }

cudaError_t cudaGetLastError() {
  return std::exchange(cuda_emulation::last_error, cudaSuccess);
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                   int device) {
  using namespace cuda_emulation;
  if (device != 0) return SetLastError(cudaErrorInvalidDevice);
  const std::map<cudaDeviceAttr, int64_t> values = {
      {cudaDevAttrMaxThreadsPerBlock, kMaxFibers},
      {cudaDevAttrMaxSharedMemoryPerBlock, kDefaultDynamicBytes},
      {cudaDevAttrWarpSize, kLanes},
      {cudaDevAttrMultiProcessorCount, options.num_sms},
      {cudaDevAttrL2CacheSize, options.l2_bytes},
      {cudaDevAttrMaxThreadsPerMultiProcessor, options.threads_per_sm},
      {cudaDevAttrComputeCapabilityMajor, 9},
      {cudaDevAttrComputeCapabilityMinor, 0},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, kSharedBytesPerSm},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, kMaxDynamicBytes},
      {cudaDevAttrMaxBlocksPerMultiprocessor, kMaxBlocksPerSm},
  };
  *value = static_cast<int>(values.at(attribute));
  return cudaSuccess;
}
