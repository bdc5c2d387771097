// SPDX-License-Identifier: Apache-2.0
//
// How the CUDA kernels of layer_norm_modulate divide rows among threads.
//
// A team of threads holds one row in registers: it reads the row once, sums it
// with warp shuffles, and writes the result once. A block has one or more teams
// and takes a run of rows of one sample. The modulation is then read once per
// run, and the backward pass keeps its sums over tokens in registers: nothing
// of the size of x but the operands and results themselves passes through
// memory. Rows that are too wide for registers have kernels of their own, which
// read a row more than once.

#ifndef JAXLOAD_FFI_LAYER_NORM_MODULATE_TEAMS_CUH_
#define JAXLOAD_FFI_LAYER_NORM_MODULATE_TEAMS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

namespace jaxload::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffff;

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// --- Teams -------------------------------------------------------------------

// A block is blockDim.y teams of blockDim.x threads, which are whole warps.
// Each team has one row at a time, and all teams loop equally often, because
// __syncthreads waits for every thread of the block.
constexpr int kMaxThreads = 512;

// Template arguments of a kernel: the columns that a thread holds, the most
// threads of a team, and whether the kernel accesses memory by vectors. More
// columns per thread leave fewer threads to sum over, but take registers.
template <int kColumnsPerThread, int kMostThreads, bool kByVectors>
struct Team {
  static constexpr int kColumns = kColumnsPerThread;
  static constexpr int kMaxWidth = kColumns * kMostThreads;
  // Launch bounds ask for one block of this size per multiprocessor: to make
  // two fit, ptxas would spill registers.
  static constexpr int kMaxBlock =
      kMostThreads > kMaxThreads ? kMostThreads : kMaxThreads;
  static constexpr bool kVectorized = kByVectors;

  static int ThreadsFor(int64_t width) {
    return static_cast<int>(CeilDiv(CeilDiv(width, kColumns), kWarp) * kWarp);
  }
};

using ScalarTeam = Team<4, kMaxThreads, false>;
using SmallTeam = Team<8, 128, true>;
using LargeTeam = Team<16, kMaxThreads, true>;
// The gated backward pass has no registers for 16 columns.
using SmallGatedTeam = Team<8, kMaxThreads, true>;
using LargeGatedTeam = Team<8, 640, true>;

// The only team of its block, which reads a row of any width several times.
struct WideTeam {
  static constexpr int kThreads = 512;

  static int ThreadsFor(int64_t) { return kThreads; }
};

// True if a thread has registers to load the next row, of `kActivations`
// arrays, while it computes the current one, which hides the latency of loads.
template <typename T, typename Team, int kActivations>
constexpr bool kPrefetchesRows =
    Team::kVectorized && Team::kMaxBlock == kMaxThreads &&
    kActivations * Team::kColumns * sizeof(T) <= 64;

// --- Sums over a team --------------------------------------------------------

// Sums `kValues` values over the threads of a team; every thread gets the sums.
template <int kValues>
class TeamSum {
 public:
  __device__ __forceinline__ TeamSum() {
    if (blockDim.x == kWarp) return;
    // Slots beyond the warps of a team stay 0, because four are read at a time.
    const int num_threads = blockDim.x * blockDim.y;
    for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < kNumSlots;
         i += num_threads) {
      Slots()[i] = 0;
    }
    num_fours_ = (blockDim.x / kWarp + 3) / 4;
    team_slots_ = Slots() + threadIdx.y * num_fours_ * 4;
    __syncthreads();
  }

  // Calls alternate between `turn` 0 and 1, which have slots of their own. One
  // barrier per call is then enough: no thread can be two calls ahead.
  __device__ __forceinline__ void operator()(float (&values)[kValues],
                                             int turn) const {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
#pragma unroll
      for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
        values[i] += __shfl_xor_sync(kAllLanes, values[i], lanes);
      }
    }
    if (blockDim.x == kWarp) return;

    float* slots = team_slots_ + turn * kValues * kMaxSlots;
    if (threadIdx.x % kWarp == 0) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        slots[i * kMaxSlots + threadIdx.x / kWarp] = values[i];
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const float4* fours = reinterpret_cast<float4*>(slots + i * kMaxSlots);
      values[i] = 0;
      for (int j = 0; j < num_fours_; ++j) {
        values[i] += (fours[j].x + fours[j].y) + (fours[j].z + fours[j].w);
      }
    }
  }

 private:
  // Slots of all teams for one value: at most 8 teams of 2 warps, which take 4
  // slots each.
  static constexpr int kMaxSlots = 32;
  static constexpr int kNumSlots = 2 * kValues * kMaxSlots;

  __device__ __forceinline__ static float* Slots() {
    __shared__ float4 slots[kNumSlots / 4];
    return reinterpret_cast<float*>(slots);
  }

  int num_fours_;
  float* team_slots_;
};

// --- Runs --------------------------------------------------------------------

// The rows of one block: consecutive tokens of one sample. Each sample has
// num_runs runs, the last of which may be shorter than tokens_per_run.
struct Run {
  int64_t sample;
  int64_t first;  // Counted over the whole batch, like `end`.
  int64_t end;

  __device__ __forceinline__ Run(int64_t tokens, unsigned num_runs,
                                 int64_t tokens_per_run)
      : sample(blockIdx.x / num_runs) {
    const int64_t token = blockIdx.x % num_runs * tokens_per_run;
    first = sample * tokens + token;
    end = sample * tokens + min(token + tokens_per_run, tokens);
  }
};

}  // namespace jaxload::cuda

#endif  // JAXLOAD_FFI_LAYER_NORM_MODULATE_TEAMS_CUH_
