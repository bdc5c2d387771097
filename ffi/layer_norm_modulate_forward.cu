// SPDX-License-Identifier: Apache-2.0
//
// Forward pass of layer_norm_modulate on CUDA: a kernel for rows in registers,
// one for wider rows, and their launcher.

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "layer_norm_modulate.h"
#include "layer_norm_modulate_cuda.h"
#include "layer_norm_modulate_launch.cuh"
#include "layer_norm_modulate_rows.cuh"
#include "layer_norm_modulate_teams.cuh"

namespace jaxload::cuda {
namespace {

// --- Kernels -----------------------------------------------------------------

// One thread of a team stores the statistics of the team's row.
__device__ __forceinline__ void StoreStatistics(int64_t row, float row_mean,
                                                float row_rstd, float* mean,
                                                float* rstd) {
  if (threadIdx.x == 0) {
    __stwb(mean + row, row_mean);
    __stwb(rstd + row, row_rstd);
  }
}

// Parameters are plain pointers, and not the structs of the launchers, because
// only pointers can be declared __restrict__, which lets the compiler reorder
// loads and stores.
template <bool kGated, typename T, typename Team>
__global__ void __launch_bounds__(Team::kMaxBlock, 1)
    FwdKernel(int64_t tokens, int64_t width, unsigned num_runs,
              int64_t tokens_per_run, float eps, const T* __restrict__ x,
              const float* __restrict__ scale, const float* __restrict__ shift,
              T* __restrict__ y, float* __restrict__ mean,
              float* __restrict__ rstd, const T* __restrict__ h,
              const float* __restrict__ gate, T* __restrict__ residual) {
  constexpr int kColumns = Team::kColumns;
  using Held = Columns<T, Team::kVectorized, kColumns>;
  const Held columns = {static_cast<int>(width)};
  const Run run(tokens, num_runs, tokens_per_run);
  const float inverse_width = 1.0f / static_cast<float>(width);
  const TeamSum<1> add_up;

  float gain[kColumns], offset[kColumns], gates[kColumns];
  columns.LoadFloats(scale + run.sample * width, gain);
  columns.LoadFloats(shift + run.sample * width, offset);
  if constexpr (kGated) columns.LoadFloats(gate + run.sample * width, gates);
  ToGain(gain);

  struct Row {
    typename Held::Raw x, h;
  };
  const auto load = [&](int64_t row) {
    Row loaded;
    loaded.x = columns.Load(x + row * width, row < run.end);
    if constexpr (kGated) {
      loaded.h = columns.Load(h + row * width, row < run.end);
    }
    return loaded;
  };
  constexpr bool kPrefetches = kPrefetchesRows<T, Team, (kGated ? 2 : 1)>;

  int64_t row = run.first + threadIdx.y;
  Row next = load(row);
  for (int64_t base = run.first; base < run.end; base += blockDim.y) {
    const Row loaded = next;
    if constexpr (kPrefetches) next = load(row + blockDim.y);

    float values[kColumns];
    Held::ToFloats(loaded.x, values);
    if constexpr (kGated) {
      float h_values[kColumns];
      Held::ToFloats(loaded.h, h_values);
      AddGated<T>(gates, h_values, values);
      if (row < run.end) columns.Store(values, residual + row * width);
    }

    // Two passes over the registers: the mean first, then the centered sum of
    // squares, because E[x^2] - E[x]^2 cancels badly for large means.
    float sum[1] = {0};
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sum[0] += values[i];
    add_up(sum, /*turn=*/0);
    const float row_mean = sum[0] * inverse_width;

    float squares[1] = {0};
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      values[i] -= row_mean;
      if (columns.Holds(i / Held::kPerPacket)) {
        squares[0] += values[i] * values[i];
      }
    }
    add_up(squares, /*turn=*/1);
    const float row_rstd = rsqrtf(squares[0] * inverse_width + eps);

    if (row < run.end) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        values[i] = values[i] * row_rstd * gain[i] + offset[i];
      }
      columns.Store(values, y + row * width);
      StoreStatistics(row, row_mean, row_rstd, mean, rstd);
    }
    row += blockDim.y;
    if constexpr (!kPrefetches) next = load(row);
  }
}

// For rows too wide for registers.
template <bool kGated, typename T>
__global__ void __launch_bounds__(WideTeam::kThreads)
    WideFwdKernel(int64_t tokens, int64_t width, unsigned num_runs,
                  int64_t tokens_per_run, float eps, const T* x,
                  const float* scale, const float* shift, T* y, float* mean,
                  float* rstd, const T* h, const float* gate, T* residual) {
  const Run run(tokens, num_runs, tokens_per_run);
  const float inverse_width = 1.0f / static_cast<float>(width);
  const TeamSum<1> add_up;
  scale += run.sample * width;
  shift += run.sample * width;
  if constexpr (kGated) gate += run.sample * width;

  for (int64_t row = run.first; row < run.end; ++row) {
    const int64_t at = row * width;
    float sum[1] = {0};
    for (int64_t d = threadIdx.x; d < width; d += blockDim.x) {
      const float value = LoadNormalized<kGated>(x, h, gate, at, d);
      if constexpr (kGated) StoreValue(residual + at + d, value);
      sum[0] += value;
    }
    add_up(sum, /*turn=*/0);
    const float row_mean = sum[0] * inverse_width;

    // Each thread reads only residuals that it stored itself, so that there is
    // nothing to wait for.
    const T* normalized = (kGated ? residual : x) + at;
    float squares[1] = {0};
    for (int64_t d = threadIdx.x; d < width; d += blockDim.x) {
      const float centered = LoadValue(normalized + d) - row_mean;
      squares[0] += centered * centered;
    }
    add_up(squares, /*turn=*/1);
    const float row_rstd = rsqrtf(squares[0] * inverse_width + eps);

    for (int64_t d = threadIdx.x; d < width; d += blockDim.x) {
      const float x_hat = (LoadValue(normalized + d) - row_mean) * row_rstd;
      StoreValue(y + at + d, x_hat * (1 + __ldg(scale + d)) + __ldg(shift + d));
    }
    StoreStatistics(row, row_mean, row_rstd, mean, rstd);
  }
}

// --- Launcher ----------------------------------------------------------------

template <bool kGated, typename T, typename Team>
constexpr auto ChooseFwdKernel() {
  if constexpr (std::is_same_v<Team, WideTeam>) {
    return WideFwdKernel<kGated, T>;
  } else {
    return FwdKernel<kGated, T, Team>;
  }
}

}  // namespace

template <bool kGated, typename T>
cudaError_t LayerNormModulateFwd(cudaStream_t stream,
                                 const LayerNormModulateFwdArguments<T>& args) {
  const LayerNormModulateShape& shape = args.shape;
  // CUDA rejects an empty grid.
  if (shape.batch * shape.tokens * shape.width == 0) return cudaSuccess;
  // A shorter run would read more modulation than rows.
  constexpr int64_t kMinTokens = 4;
  const bool is_vectorizable =
      IsVectorizable<T>(shape.width, args.x, args.scale, args.shift, args.y,
                        args.h, args.gate, args.residual);
  return DispatchTeam<SmallTeam, LargeTeam>(
      shape.width, is_vectorizable, [&](auto team) {
        using Team = decltype(team);
        unsigned num_runs;
        return LaunchOnRuns(
            stream, ChooseFwdKernel<kGated, T, Team>(),
            Team::ThreadsFor(shape.width), CeilDiv(shape.tokens, kMinTokens),
            &num_runs, shape, args.eps, args.x, args.scale, args.shift, args.y,
            args.mean, args.rstd, args.h, args.gate, args.residual);
      });
}

#define JAXLOAD_INSTANTIATE(gated, T)                  \
  template cudaError_t LayerNormModulateFwd<gated, T>( \
      cudaStream_t, const LayerNormModulateFwdArguments<T>&)

JAXLOAD_INSTANTIATE(false, float);
JAXLOAD_INSTANTIATE(false, BFloat16);
JAXLOAD_INSTANTIATE(false, Float16);
JAXLOAD_INSTANTIATE(true, float);
JAXLOAD_INSTANTIATE(true, BFloat16);
JAXLOAD_INSTANTIATE(true, Float16);

#undef JAXLOAD_INSTANTIATE

}  // namespace jaxload::cuda
