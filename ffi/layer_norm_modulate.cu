// SPDX-License-Identifier: Apache-2.0
//
// A row is held in the registers of a team of threads: it is read once, its
// sums are taken with warp shuffles, and its result is written once. A block
// has one team or several, and takes a run of rows of one sample, so that the
// modulation is read once per run, and so that the backward pass can keep the
// sums over tokens of its columns in registers too: nothing but x, dy and dx
// passes through memory at full size. A second kernel adds up the sums of the
// runs, in order and without atomics: the same bits on every call.
//
// All global memory is accessed through intrinsics with cache hints: what is
// read once streams past the cache. Rows that are too wide for registers have
// kernels of their own, which read them more than once.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "layer_norm_modulate_cuda.h"

namespace jaxload::cuda {
namespace {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffff;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// --- Values in memory --------------------------------------------------------

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

// What one access moves: 16 bytes, the most there is, or a single value where a
// row does not start or end at a multiple of that.
template <typename T, bool kVectorized>
struct Piece {
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
struct Piece<T, false> {
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

// For rows that are read again: through L2, which has what was just written.
template <typename T>
__device__ __forceinline__ float LoadValue(const T* from) {
  using One = Piece<T, false>;
  float value;
  One::ToFloats(__ldcg(reinterpret_cast<const typename One::Raw*>(from)),
                &value);
  return value;
}

template <typename T>
__device__ __forceinline__ void StoreValue(T* to, float value) {
  using One = Piece<T, false>;
  __stwb(reinterpret_cast<typename One::Raw*>(to), One::FromFloats(&value));
}

// Returns x + gate * h as it is in memory: rounded to T. Both passes must find
// the same, so that it is not left to the compiler whether to fuse.
template <typename T>
__device__ __forceinline__ float Residual(float x, float gate, float h) {
  using One = Piece<T, false>;
  float value = __fmaf_rn(gate, h, x);
  One::ToFloats(One::FromFloats(&value), &value);
  return value;
}

// --- Columns of a thread -----------------------------------------------------

// The columns of a row that one thread of a team holds: pieces as far apart as
// the team is wide, so that the threads of a warp access one stretch of memory.
template <typename T, bool kVectorized, int kColumns>
struct Columns {
  using OnePiece = Piece<T, kVectorized>;
  static constexpr int kPerPiece = OnePiece::kValues;
  static constexpr int kPieces = kColumns / kPerPiece;

  // A row as it was loaded: half the registers of floats for a 16-bit type.
  struct Raw {
    typename OnePiece::Raw pieces[kPieces];
  };

  int width;

  __device__ __forceinline__ int Offset(int piece) const {
    return (piece * blockDim.x + threadIdx.x) * kPerPiece;
  }
  // No piece crosses the end of a row: see `IsVectorizable`.
  __device__ __forceinline__ bool Holds(int piece) const {
    return Offset(piece) < width;
  }

  // Columns beyond the end of the row, or all of them without a row, are 0.
  __device__ __forceinline__ Raw Load(const T* row, bool is_row) const {
    Raw raw = {};
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (is_row && Holds(i)) {
        raw.pieces[i] = __ldcs(
            reinterpret_cast<const typename OnePiece::Raw*>(row + Offset(i)));
      }
    }
    return raw;
  }

  __device__ __forceinline__ static void ToFloats(const Raw& raw,
                                                  float (&values)[kColumns]) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      OnePiece::ToFloats(raw.pieces[i], values + i * kPerPiece);
    }
  }

  __device__ __forceinline__ void Store(const float (&values)[kColumns],
                                        T* row) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (Holds(i)) {
        __stwb(reinterpret_cast<typename OnePiece::Raw*>(row + Offset(i)),
               OnePiece::FromFloats(values + i * kPerPiece));
      }
    }
  }

  __device__ __forceinline__ void LoadFloats(const float* row,
                                             float (&values)[kColumns]) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const float* from = row + Offset(i);
      float* to = values + i * kPerPiece;
      if constexpr (kVectorized) {
#pragma unroll
        for (int j = 0; j < kPerPiece; j += 4) {
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
    for (int i = 0; i < kPieces; ++i) {
      if (!Holds(i)) continue;
      const float* from = values + i * kPerPiece;
      float* to = row + Offset(i);
      if constexpr (kVectorized) {
#pragma unroll
        for (int j = 0; j < kPerPiece; j += 4) {
          __stwb(reinterpret_cast<float4*>(to + j),
                 make_float4(from[j], from[j + 1], from[j + 2], from[j + 3]));
        }
      } else {
        __stwb(to, from[0]);
      }
    }
  }
};

// --- Teams and runs ----------------------------------------------------------

// A block is blockDim.y teams of blockDim.x threads, whole warps. Each team has
// a row at a time, and all of them keep in step, because barriers are for all.
constexpr int kMaxThreads = 512;

// What a kernel is compiled for: the columns that a thread holds, the most
// threads of a team, and whether it accesses memory by vectors. More columns
// leave fewer threads to add up over.
template <int kColumnsPerThread, int kMostThreads, bool kByVectors>
struct Team {
  static constexpr int kColumns = kColumnsPerThread;
  static constexpr int kMaxWidth = kColumns * kMostThreads;
  // With no more than one block asked for on a multiprocessor, in launch
  // bounds: to make room for two, ptxas spills registers.
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
// The backward pass of the gated form has no registers for 16 columns.
using SmallGatedTeam = Team<8, kMaxThreads, true>;
using LargeGatedTeam = Team<8, 640, true>;

// Adds up values over a team; every thread gets the sums.
template <int kValues>
class TeamSum {
 public:
  __device__ __forceinline__ TeamSum() {
    if (blockDim.x == kWarp) return;
    // Slots beyond the warps of a team stay 0: four are read at a time.
    const int num_threads = blockDim.x * blockDim.y;
    for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < kNumSlots;
         i += num_threads) {
      Slots()[i] = 0;
    }
    num_fours_ = (blockDim.x / kWarp + 3) / 4;
    first_ = Slots() + threadIdx.y * num_fours_ * 4;
    __syncthreads();
  }

  // `turn`, 0 or 1, is not that of the call before: with two sets of slots one
  // barrier is enough, since no thread can be two calls ahead of another.
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

    float* slots = first_ + turn * kValues * kMaxSlots;
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
  // Of all teams for one value: the most is 4 for each of 8 teams of 2 warps.
  static constexpr int kMaxSlots = 32;
  static constexpr int kNumSlots = 2 * kValues * kMaxSlots;

  __device__ __forceinline__ static float* Slots() {
    __shared__ float4 slots[kNumSlots / 4];
    return reinterpret_cast<float*>(slots);
  }

  int num_fours_;
  float* first_;  // Of the team's slots.
};

// The rows of one block: a run of tokens of one sample, of which each sample
// has num_runs. The last may be shorter than tokens_per_run.
struct Run {
  int64_t sample;
  int64_t first;  // Counted over the whole batch, as `end`.
  int64_t end;

  __device__ __forceinline__ Run(int64_t tokens, unsigned num_runs,
                                 int64_t tokens_per_run)
      : sample(blockIdx.x / num_runs) {
    const int64_t token = blockIdx.x % num_runs * tokens_per_run;
    first = sample * tokens + token;
    end = sample * tokens + min(token + tokens_per_run, tokens);
  }
};

// Whether a thread has registers for the next row, of `kActivations` arrays,
// while it works on this one: its loads are then on their way in time.
template <typename T, typename Team, int kActivations>
constexpr bool kHasRoomForNextRow =
    Team::kVectorized && Team::kMaxBlock == kMaxThreads &&
    kActivations * Team::kColumns * sizeof(T) <= 64;

// --- Forward -----------------------------------------------------------------

// Parameters are plain pointers, and not the structs of the launchers, because
// only of a pointer can the compiler know that nothing else points there.
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
#pragma unroll
  for (int i = 0; i < kColumns; ++i) gain[i] += 1;

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
  constexpr bool kLoadsAhead = kHasRoomForNextRow<T, Team, (kGated ? 2 : 1)>;

  int64_t row = run.first + threadIdx.y;
  Row next = load(row);
  for (int64_t base = run.first; base < run.end; base += blockDim.y) {
    const Row loaded = next;
    if constexpr (kLoadsAhead) next = load(row + blockDim.y);

    float values[kColumns];
    Held::ToFloats(loaded.x, values);
    if constexpr (kGated) {
      float h_values[kColumns];
      Held::ToFloats(loaded.h, h_values);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        values[i] = Residual<T>(values[i], gates[i], h_values[i]);
      }
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
      if (columns.Holds(i / Held::kPerPiece)) {
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
      if (threadIdx.x == 0) {
        __stwb(mean + row, row_mean);
        __stwb(rstd + row, row_rstd);
      }
    }
    row += blockDim.y;
    if constexpr (!kLoadsAhead) next = load(row);
  }
}

// --- Backward ----------------------------------------------------------------

// Adds up a sum of each column over the teams of the block, in their order; the
// first team gets the result.
template <int kColumns>
__device__ __forceinline__ void SumOverTeams(float (&values)[kColumns]) {
  // Of the largest team of which two fit into a block.
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

// With g = dy * (1 + scale) and x_hat = (x - mean) * rstd, what goes through
// the layer norm to x is rstd * (g - average(g) - x_hat * average(g * x_hat)).
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
#pragma unroll
  for (int i = 0; i < kColumns; ++i) gain[i] += 1;

  // Without the registers, dresidual is loaded when it is needed.
  constexpr bool kLoadsAhead = kHasRoomForNextRow<T, Team, (kGated ? 4 : 2)>;
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
    if constexpr (kGated && kLoadsAhead) {
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
    if constexpr (kLoadsAhead) next = load(row + blockDim.y);

    float x_hat[kColumns], values[kColumns];  // values: dy, then g, then dx.
    float others[kColumns];  // Gated: h, then dresidual, then h again, then dh.
    Held::ToFloats(loaded.x, x_hat);
    Held::ToFloats(loaded.dy, values);
    if constexpr (kGated) {
      Held::ToFloats(loaded.h, others);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        x_hat[i] = Residual<T>(x_hat[i], gates[i], others[i]);
      }
    }
    float averages[2] = {0, 0};  // Of g and of g * x_hat.
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      x_hat[i] = (x_hat[i] - loaded.mean) * loaded.rstd;
      dscale[i] += values[i] * x_hat[i];
      dshift[i] += values[i];
      values[i] *= gain[i];
      averages[0] += values[i];
      averages[1] += values[i] * x_hat[i];
    }
    add_up(averages, turn);
    turn ^= 1;
    averages[0] *= inverse_width;
    averages[1] *= inverse_width;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      values[i] =
          loaded.rstd * (values[i] - averages[0] - x_hat[i] * averages[1]);
    }

    if constexpr (kGated) {
      if constexpr (!kLoadsAhead) {
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
    if constexpr (!kLoadsAhead) next = load(row);
  }

  SumOverTeams(dscale);
  SumOverTeams(dshift);
  if constexpr (kGated) SumOverTeams(dgate);
  if (threadIdx.y == 0) {
    float* sums = workspace + int64_t{blockIdx.x} * (kGated ? 3 : 2) * width;
    columns.StoreFloats(dscale, sums);
    columns.StoreFloats(dshift, sums + width);
    if constexpr (kGated) columns.StoreFloats(dgate, sums + 2 * width);
  }
}

constexpr int kMaxWarps = 32;

// Adds up the sums of the runs of each sample. A block has kWarp columns; each
// of its warps adds up every blockDim.y-th run, and the first adds up those.
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

// --- Rows too wide for registers ---------------------------------------------

// One team per block, which goes over a row several times.
constexpr int kWideThreads = 512;

template <bool kGated, typename T>
__global__ void __launch_bounds__(kWideThreads)
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
      float value = LoadValue(x + at + d);
      if constexpr (kGated) {
        value = Residual<T>(value, __ldg(gate + d), LoadValue(h + at + d));
        StoreValue(residual + at + d, value);
      }
      sum[0] += value;
    }
    add_up(sum, /*turn=*/0);
    const float row_mean = sum[0] * inverse_width;

    // Each thread reads back what it wrote itself.
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
    if (threadIdx.x == 0) {
      __stwb(mean + row, row_mean);
      __stwb(rstd + row, row_rstd);
    }
  }
}

// Adds to a sum that only this thread has to do with.
__device__ __forceinline__ void AddTo(float* sum, float value, bool is_first) {
  __stwb(sum, is_first ? value : __ldcg(sum) + value);
}

template <bool kGated, typename T>
__global__ void __launch_bounds__(kWideThreads)
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
  float* sums = workspace + int64_t{blockIdx.x} * (kGated ? 3 : 2) * width;

  int turn = 0;
  for (int64_t row = run.first; row < run.end; ++row) {
    const int64_t at = row * width;
    const float row_mean = __ldg(mean + row), row_rstd = __ldg(rstd + row);
    float averages[2] = {0, 0};  // Of g and of g * x_hat.
    const auto load_x_hat = [&](int64_t d) {
      float value = LoadValue(x + at + d);
      if constexpr (kGated) {
        value = Residual<T>(value, __ldg(gate + d), LoadValue(h + at + d));
      }
      return (value - row_mean) * row_rstd;
    };
    for (int64_t d = threadIdx.x; d < width; d += blockDim.x) {
      const float g = LoadValue(dy + at + d) * (1 + __ldg(scale + d));
      averages[0] += g;
      averages[1] += g * load_x_hat(d);
    }
    add_up(averages, turn);
    turn ^= 1;
    averages[0] *= inverse_width;
    averages[1] *= inverse_width;

    const bool is_first = row == run.first;
    for (int64_t d = threadIdx.x; d < width; d += blockDim.x) {
      float value = LoadValue(dy + at + d);
      const float x_hat = load_x_hat(d);
      AddTo(sums + d, value * x_hat, is_first);
      AddTo(sums + width + d, value, is_first);
      value *= 1 + __ldg(scale + d);
      value = row_rstd * (value - averages[0] - x_hat * averages[1]);
      if constexpr (kGated) {
        value += LoadValue(dresidual + at + d);
        AddTo(sums + 2 * width + d, value * LoadValue(h + at + d), is_first);
        StoreValue(dh + at + d, value * __ldg(gate + d));
      }
      StoreValue(dx + at + d, value);
    }
  }
}

// --- Launchers ---------------------------------------------------------------

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

struct WideTeam {
  static int ThreadsFor(int64_t) { return kWideThreads; }
};

template <bool kGated, typename T, typename Team>
constexpr auto ChooseFwdKernel() {
  if constexpr (std::is_same_v<Team, WideTeam>) {
    return WideFwdKernel<kGated, T>;
  } else {
    return FwdKernel<kGated, T, Team>;
  }
}

template <bool kGated, typename T, typename Team>
constexpr auto ChooseBwdKernel() {
  if constexpr (std::is_same_v<Team, WideTeam>) {
    return WideBwdKernel<kGated, T>;
  } else {
    return BwdKernel<kGated, T, Team>;
  }
}

// Calls `launch` with the smallest team that holds a row.
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

template <typename T, typename... Pointers>
bool IsVectorizable(int64_t width, const Pointers*... pointers) {
  constexpr uintptr_t kBytes = 16;
  return width % (kBytes / sizeof(T)) == 0 &&
         ((reinterpret_cast<uintptr_t>(pointers) % kBytes == 0) && ...);
}

// A block has this many threads, in several teams, where one team has fewer,
// and kMaxThreads where there are fewer blocks than multiprocessors.
constexpr int kUsualThreads = 256;

// Cuts the tokens into one wave of blocks: as many runs as there are places for
// blocks on the device, but at most max_runs for each sample. Launches `kernel`
// on them, and returns the number of runs for each sample in *num_runs.
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

  const int64_t places = int64_t{num_processors} * blocks_per_processor;
  const int64_t most = std::clamp<int64_t>(places / shape.batch, 1,
                                           std::max<int64_t>(max_runs, 1));
  const int64_t tokens_per_run = CeilDiv(shape.tokens, most);
  *num_runs = static_cast<unsigned>(CeilDiv(shape.tokens, tokens_per_run));
  return Launch(stream, kernel, shape.batch * *num_runs, block, shape.tokens,
                shape.width, *num_runs, tokens_per_run, arguments...);
}

template <bool kGated, typename T>
cudaError_t LaunchSumOverRuns(cudaStream_t stream,
                              const LayerNormModulateBwdArguments<T>& args,
                              unsigned num_runs) {
  constexpr int kNumSums = kGated ? 3 : 2;
  const int64_t width = args.shape.width;
  const dim3 block(kWarp, std::clamp<unsigned>(num_runs, 1, kMaxWarps));
  return Launch(stream, SumOverRunsKernel<kNumSums>,
                args.shape.batch * CeilDiv(kNumSums * width, kWarp), block,
                args.workspace, num_runs, width, args.dscale, args.dshift,
                args.dgate);
}

}  // namespace

template <bool kGated, typename T>
cudaError_t LayerNormModulateFwd(cudaStream_t stream,
                                 const LayerNormModulateFwdArguments<T>& args) {
  const LayerNormModulateShape& shape = args.shape;
  // CUDA refuses an empty grid.
  if (shape.batch * shape.tokens * shape.width == 0) return cudaSuccess;
  // A shorter run has more modulation to read than rows.
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

template <bool kGated, typename T>
cudaError_t LayerNormModulateBwd(cudaStream_t stream,
                                 const LayerNormModulateBwdArguments<T>& args) {
  const LayerNormModulateShape& shape = args.shape;
  if (shape.batch * shape.width == 0) return cudaSuccess;
  // Sums over no tokens are 0.
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

// --- Instantiations ----------------------------------------------------------

#define JAXLOAD_INSTANTIATE(gated, T)                         \
  template cudaError_t LayerNormModulateFwd<gated, T>(        \
      cudaStream_t, const LayerNormModulateFwdArguments<T>&); \
  template cudaError_t LayerNormModulateBwd<gated, T>(        \
      cudaStream_t, const LayerNormModulateBwdArguments<T>&)

JAXLOAD_INSTANTIATE(false, float);
JAXLOAD_INSTANTIATE(false, BFloat16);
JAXLOAD_INSTANTIATE(false, Float16);
JAXLOAD_INSTANTIATE(true, float);
JAXLOAD_INSTANTIATE(true, BFloat16);
JAXLOAD_INSTANTIATE(true, Float16);

}  // namespace jaxload::cuda
