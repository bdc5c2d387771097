// SPDX-License-Identifier: Apache-2.0
//
// Backward pass of layer_norm_modulate on CUDA: a kernel for rows in registers,
// one for wider rows, one that adds up the sums of the runs, and their
// launcher.
//
// Gradients of the modulation are sums over tokens. Each run writes its own to
// the workspace, and a second kernel adds them up in order and without atomics,
// so that every call gives the same bits.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "layer_norm_modulate.h"
#include "layer_norm_modulate_cuda.h"
#include "layer_norm_modulate_launch.cuh"
#include "layer_norm_modulate_rows.cuh"
#include "layer_norm_modulate_teams.cuh"

namespace jaxload::cuda {
namespace {

// --- Sums of a run -----------------------------------------------------------

// dscale, dshift and, gated, dgate.
template <bool kGated>
constexpr int kNumSums = kGated ? 3 : 2;

// Returns the sums of this block's run in the workspace.
template <bool kGated>
__device__ __forceinline__ float* SumsOfRun(float* workspace, int64_t width) {
  return workspace + int64_t{blockIdx.x} * kNumSums<kGated> * width;
}

// Adds up values of each column over the teams of the block, in their order;
// the first team gets the sums.
template <int kColumns>
__device__ __forceinline__ void SumOverTeams(float (&values)[kColumns]) {
  // Sized for the largest team of which two fit into a block.
  __shared__ float slots[kMaxThreads / 2 * kColumns];
  for (int team = 1; team < blockDim.y; ++team) {
    __syncthreads();
    if (threadIdx.y == team) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        slots[i * blockDim.x + threadIdx.x] = values[i];
      }
    }
    __syncthreads();
    if (threadIdx.y == 0) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        values[i] += slots[i * blockDim.x + threadIdx.x];
      }
    }
  }
}

// Adds to a sum in the workspace that no other thread accesses.
__device__ __forceinline__ void AddTo(float* sum, float value, bool is_first) {
  __stwb(sum, is_first ? value : __ldcg(sum) + value);
}

// --- Kernels -----------------------------------------------------------------

// Turns each thread's sums into averages over the row, and switches `turn` for
// the next call.
__device__ __forceinline__ void AverageOverRow(const TeamSum<2>& add_up,
                                               float inverse_width, int& turn,
                                               float (&sums)[2]) {
  add_up(sums, turn);
  turn ^= 1;
  sums[0] *= inverse_width;
  sums[1] *= inverse_width;
}

// Returns the gradient of the layer norm's input, where g = dy * (1 + scale),
// x_hat = (x - mean) * rstd, and `averages` over the row are those of g and of
// g * x_hat.
__device__ __forceinline__ float InputGradient(float g, float x_hat, float rstd,
                                               const float (&averages)[2]) {
  return rstd * (g - averages[0] - x_hat * averages[1]);
}

// Parameters are plain pointers for the reason given at FwdKernel.
template <bool kGated, typename T, typename Team>
__global__ void __launch_bounds__(Team::kMaxBlock, 1)
    BwdKernel(int64_t tokens, int64_t width, unsigned num_runs,
              int64_t tokens_per_run, const T* __restrict__ x,
              const float* __restrict__ scale, const float* __restrict__ mean,
              const float* __restrict__ rstd, const T* __restrict__ dy,
              T* __restrict__ dx, float* __restrict__ workspace,
              const T* __restrict__ h, const float* __restrict__ gate,
              const T* __restrict__ dresidual, T* __restrict__ dh) {
  constexpr int kColumns = Team::kColumns;
  using Held = Columns<T, Team::kVectorized, kColumns>;
  const Held columns = {static_cast<int>(width)};
  const Run run(tokens, num_runs, tokens_per_run);
  const float inverse_width = 1.0f / static_cast<float>(width);
  const TeamSum<2> add_up;

  float gain[kColumns], gates[kColumns];
  columns.LoadFloats(scale + run.sample * width, gain);
  if constexpr (kGated) columns.LoadFloats(gate + run.sample * width, gates);
  ToGain(gain);

  // Without prefetching, dresidual is loaded only when it is needed, to save
  // registers.
  constexpr bool kPrefetches = kPrefetchesRows<T, Team, (kGated ? 4 : 2)>;
  struct Row {
    typename Held::Raw x, dy, h, dresidual;
    float mean, rstd;
  };
  const auto load = [&](int64_t row) {
    const bool is_row = row < run.end;
    const int64_t at = row * width;
    Row loaded;
    loaded.mean = is_row ? __ldg(mean + row) : 0;
    loaded.rstd = is_row ? __ldg(rstd + row) : 0;
    loaded.x = columns.Load(x + at, is_row);
    loaded.dy = columns.Load(dy + at, is_row);
    if constexpr (kGated) loaded.h = columns.Load(h + at, is_row);
    if constexpr (kGated && kPrefetches) {
      loaded.dresidual = columns.Load(dresidual + at, is_row);
    }
    return loaded;
  };

  float dscale[kColumns] = {}, dshift[kColumns] = {}, dgate[kColumns] = {};
  int turn = 0;
  int64_t row = run.first + threadIdx.y;
  Row next = load(row);
  for (int64_t base = run.first; base < run.end; base += blockDim.y) {
    Row loaded = next;
    if constexpr (kPrefetches) next = load(row + blockDim.y);

    float x_hat[kColumns], values[kColumns];  // values: dy, then g, then dx.
    float others[kColumns];  // Gated: h, then dresidual, then h again, then dh.
    Held::ToFloats(loaded.x, x_hat);
    Held::ToFloats(loaded.dy, values);
    if constexpr (kGated) {
      Held::ToFloats(loaded.h, others);
      AddGated<T>(gates, others, x_hat);
    }
    float averages[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      x_hat[i] = (x_hat[i] - loaded.mean) * loaded.rstd;
      dscale[i] += values[i] * x_hat[i];
      dshift[i] += values[i];
      values[i] *= gain[i];
      averages[0] += values[i];
      averages[1] += values[i] * x_hat[i];
    }
    AverageOverRow(add_up, inverse_width, turn, averages);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      values[i] = InputGradient(values[i], x_hat[i], loaded.rstd, averages);
    }

    if constexpr (kGated) {
      if constexpr (!kPrefetches) {
        loaded.dresidual = columns.Load(dresidual + row * width, row < run.end);
      }
      Held::ToFloats(loaded.dresidual, others);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) values[i] += others[i];
      Held::ToFloats(loaded.h, others);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        dgate[i] += values[i] * others[i];
        others[i] = values[i] * gates[i];
      }
      if (row < run.end) columns.Store(others, dh + row * width);
    }
    if (row < run.end) columns.Store(values, dx + row * width);
    row += blockDim.y;
    if constexpr (!kPrefetches) next = load(row);
  }

  SumOverTeams(dscale);
  SumOverTeams(dshift);
  if constexpr (kGated) SumOverTeams(dgate);
  if (threadIdx.y == 0) {
    float* sums = SumsOfRun<kGated>(workspace, width);
    columns.StoreFloats(dscale, sums);
    columns.StoreFloats(dshift, sums + width);
    if constexpr (kGated) columns.StoreFloats(dgate, sums + 2 * width);
  }
}

// For rows too wide for registers; the sums of a run stay in the workspace.
template <bool kGated, typename T>
__global__ void __launch_bounds__(WideTeam::kThreads)
    WideBwdKernel(int64_t tokens, int64_t width, unsigned num_runs,
                  int64_t tokens_per_run, const T* x, const float* scale,
                  const float* mean, const float* rstd, const T* dy, T* dx,
                  float* workspace, const T* h, const float* gate,
                  const T* dresidual, T* dh) {
  const Run run(tokens, num_runs, tokens_per_run);
  const float inverse_width = 1.0f / static_cast<float>(width);
  const TeamSum<2> add_up;
  scale += run.sample * width;
  if constexpr (kGated) gate += run.sample * width;
  float* sums = SumsOfRun<kGated>(workspace, width);

  int turn = 0;
  for (int64_t row = run.first; row < run.end; ++row) {
    const int64_t at = row * width;
    const float row_mean = __ldg(mean + row), row_rstd = __ldg(rstd + row);
    const auto load_x_hat = [&](int64_t d) {
      return (LoadNormalized<kGated>(x, h, gate, at, d) - row_mean) * row_rstd;
    };
    float averages[2] = {0, 0};
    for (int64_t d = threadIdx.x; d < width; d += blockDim.x) {
      const float g = LoadValue(dy + at + d) * (1 + __ldg(scale + d));
      averages[0] += g;
      averages[1] += g * load_x_hat(d);
    }
    AverageOverRow(add_up, inverse_width, turn, averages);

    const bool is_first = row == run.first;
    for (int64_t d = threadIdx.x; d < width; d += blockDim.x) {
      float value = LoadValue(dy + at + d);  // dy, then g, then dx.
      const float x_hat = load_x_hat(d);
      AddTo(sums + d, value * x_hat, is_first);
      AddTo(sums + width + d, value, is_first);
      value *= 1 + __ldg(scale + d);
      value = InputGradient(value, x_hat, row_rstd, averages);
      if constexpr (kGated) {
        value += LoadValue(dresidual + at + d);
        AddTo(sums + 2 * width + d, value * LoadValue(h + at + d), is_first);
        StoreValue(dh + at + d, value * __ldg(gate + d));
      }
      StoreValue(dx + at + d, value);
    }
  }
}

constexpr int kMaxWarps = 32;

// Adds up the sums of all runs of each sample. A block has kWarp columns; each
// of its warps adds up every blockDim.y-th run, and the first warp adds up the
// results of the warps.
template <int kNumSums>
__global__ void __launch_bounds__(kWarp* kMaxWarps)
    SumOverRunsKernel(const float* workspace, unsigned num_runs, int64_t width,
                      float* dscale, float* dshift, float* dgate) {
  __shared__ float slots[kMaxWarps][kWarp];
  const int64_t row_size = kNumSums * width;
  const int64_t blocks_per_sample = (row_size + kWarp - 1) / kWarp;
  const int64_t sample = blockIdx.x / blocks_per_sample;
  const int64_t column = blockIdx.x % blocks_per_sample * kWarp + threadIdx.x;
  const float* sums = workspace + sample * num_runs * row_size + column;

  float sum = 0;
  if (column < row_size) {
    for (unsigned run = threadIdx.y; run < num_runs; run += blockDim.y) {
      sum += __ldg(sums + run * row_size);
    }
  }
  slots[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= row_size) return;
  for (int warp = 1; warp < blockDim.y; ++warp) {
    sum += slots[warp][threadIdx.x];
  }
  const int64_t at = sample * width;
  if (column < width) {
    __stwb(dscale + at + column, sum);
  } else if (column < 2 * width) {
    __stwb(dshift + at + column - width, sum);
  } else {
    __stwb(dgate + at + column - 2 * width, sum);
  }
}

// --- Launcher ----------------------------------------------------------------

template <bool kGated, typename T, typename Team>
constexpr auto ChooseBwdKernel() {
  if constexpr (std::is_same_v<Team, WideTeam>) {
    return WideBwdKernel<kGated, T>;
  } else {
    return BwdKernel<kGated, T, Team>;
  }
}

template <bool kGated, typename T>
cudaError_t LaunchSumOverRuns(cudaStream_t stream,
                              const LayerNormModulateBwdArguments<T>& args,
                              unsigned num_runs) {
  const int64_t width = args.shape.width;
  const dim3 block(kWarp, std::clamp<unsigned>(num_runs, 1, kMaxWarps));
  return Launch(stream, SumOverRunsKernel<kNumSums<kGated>>,
                args.shape.batch * CeilDiv(kNumSums<kGated> * width, kWarp),
                block, args.workspace, num_runs, width, args.dscale,
                args.dshift, args.dgate);
}

}  // namespace

template <bool kGated, typename T>
cudaError_t LayerNormModulateBwd(cudaStream_t stream,
                                 const LayerNormModulateBwdArguments<T>& args) {
  const LayerNormModulateShape& shape = args.shape;
  // CUDA rejects an empty grid.
  if (shape.batch * shape.width == 0) return cudaSuccess;
  // Sums over no tokens are 0, and are still results.
  if (shape.tokens == 0) return LaunchSumOverRuns<kGated>(stream, args, 0);
  const bool is_vectorizable = IsVectorizable<T>(
      shape.width, args.x, args.scale, args.dy, args.dx, args.workspace, args.h,
      args.gate, args.dresidual, args.dh);
  unsigned num_runs;
  const cudaError_t error =
      DispatchTeam<std::conditional_t<kGated, SmallGatedTeam, SmallTeam>,
                   std::conditional_t<kGated, LargeGatedTeam, LargeTeam>>(
          shape.width, is_vectorizable, [&](auto team) {
            using Team = decltype(team);
            return LaunchOnRuns(stream, ChooseBwdKernel<kGated, T, Team>(),
                                Team::ThreadsFor(shape.width), args.num_runs,
                                &num_runs, shape, args.x, args.scale, args.mean,
                                args.rstd, args.dy, args.dx, args.workspace,
                                args.h, args.gate, args.dresidual, args.dh);
          });
  if (error != cudaSuccess) return error;
  return LaunchSumOverRuns<kGated>(stream, args, num_runs);
}

#define JAXLOAD_INSTANTIATE(gated, T)                  \
  template cudaError_t LayerNormModulateBwd<gated, T>( \
      cudaStream_t, const LayerNormModulateBwdArguments<T>&)

JAXLOAD_INSTANTIATE(false, float);
JAXLOAD_INSTANTIATE(false, BFloat16);
JAXLOAD_INSTANTIATE(false, Float16);
JAXLOAD_INSTANTIATE(true, float);
JAXLOAD_INSTANTIATE(true, BFloat16);
JAXLOAD_INSTANTIATE(true, Float16);

#undef JAXLOAD_INSTANTIATE

}  // namespace jaxload::cuda
