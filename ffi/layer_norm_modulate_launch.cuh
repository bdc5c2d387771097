// SPDX-License-Identifier: Apache-2.0
//
// Host code that both passes of layer_norm_modulate launch their kernels with:
// the choice of a team for a width, and the division of tokens into runs.

#ifndef JAXLOAD_FFI_LAYER_NORM_MODULATE_LAUNCH_CUH_
#define JAXLOAD_FFI_LAYER_NORM_MODULATE_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "layer_norm_modulate.h"
#include "layer_norm_modulate_teams.cuh"

namespace jaxload::cuda {

template <typename... Parameters, typename... Arguments>
cudaError_t Launch(cudaStream_t stream, void (*kernel)(Parameters...),
                   int64_t num_blocks, dim3 block,
                   const Arguments&... arguments) {
  if (num_blocks > std::numeric_limits<int>::max()) {
    return cudaErrorInvalidConfiguration;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(num_blocks));
  config.blockDim = block;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// Returns whether every row starts and ends at a multiple of 16 bytes, so that
// vectors of 16 bytes divide it.
template <typename T, typename... Pointers>
bool IsVectorizable(int64_t width, const Pointers*... pointers) {
  constexpr uintptr_t kBytes = 16;
  return width % (kBytes / sizeof(T)) == 0 &&
         ((reinterpret_cast<uintptr_t>(pointers) % kBytes == 0) && ...);
}

// Calls `launch` with the smallest team that holds a row in registers, or with
// WideTeam if none does.
template <typename Small, typename Large, typename Launcher>
cudaError_t DispatchTeam(int64_t width, bool is_vectorizable,
                         const Launcher& launch) {
  if (is_vectorizable) {
    if (width <= Small::kMaxWidth) return launch(Small{});
    if (width <= Large::kMaxWidth) return launch(Large{});
  } else if (width <= ScalarTeam::kMaxWidth) {
    return launch(ScalarTeam{});
  }
  return launch(WideTeam{});
}

// Threads of a block: as many teams as fit into them, but at least one. If
// there are fewer blocks than multiprocessors, teams fill kMaxThreads instead.
constexpr int kUsualThreads = 256;

// Launches `kernel` with one block per run. The samples have together as many
// runs as blocks fit on the device at once, but each has at most max_runs. Sets
// *num_runs to the number of runs of a sample.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchOnRuns(cudaStream_t stream, void (*kernel)(Parameters...),
                         int team_threads, int64_t max_runs, unsigned* num_runs,
                         const LayerNormModulateShape& shape,
                         const Arguments&... arguments) {
  int device, num_processors, blocks_per_processor;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&num_processors,
                                 cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;

  const int threads =
      shape.batch * max_runs < num_processors ? kMaxThreads : kUsualThreads;
  const dim3 block(team_threads, std::max(threads / team_threads, 1));
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks_per_processor, kernel, block.x * block.y, /*dynamicSMemSize=*/0);
  if (error != cudaSuccess) return error;

  const int64_t blocks_per_wave =
      int64_t{num_processors} * blocks_per_processor;
  const int64_t runs_per_sample = std::clamp<int64_t>(
      blocks_per_wave / shape.batch, 1, std::max<int64_t>(max_runs, 1));
  const int64_t tokens_per_run = CeilDiv(shape.tokens, runs_per_sample);
  // Fewer than runs_per_sample, if rounding up left nothing for the last ones.
  *num_runs = static_cast<unsigned>(CeilDiv(shape.tokens, tokens_per_run));
  return Launch(stream, kernel, shape.batch * *num_runs, block, shape.tokens,
                shape.width, *num_runs, tokens_per_run, arguments...);
}

}  // namespace jaxload::cuda

#endif  // JAXLOAD_FFI_LAYER_NORM_MODULATE_LAUNCH_CUH_
