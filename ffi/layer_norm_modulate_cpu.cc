// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "layer_norm_modulate.h"

namespace jaxload::cpu {
namespace {

// --- 16-bit floats ---------------------------------------------------------
//
// Branch-free, so that loops over them vectorize, and without a subnormal
// float on the way, because XLA runs its threads with subnormals flushed to 0.

template <typename To, typename From>
To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// With masks, because a compiler may turn `?:` into a branch.
inline int32_t Select(bool condition, int32_t yes, int32_t no) {
  const int32_t mask = -static_cast<int32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

inline float ToFloat(float value) { return value; }

inline float ToFloat(BFloat16 value) {
  return BitCast<float>(static_cast<uint32_t>(value.bits) << 16);
}

inline float ToFloat(Float16 value) {
  constexpr int32_t kInfinity = 0x7c00 << 13;
  constexpr int32_t kSmallestNormal = 0x0400 << 13;
  constexpr int32_t kRebias = (127 - 15) << 23;
  const int32_t sign = (value.bits & 0x8000) << 16;
  const int32_t magnitude = (value.bits & 0x7fff) << 13;
  // A subnormal is m * 2^-24 with an exponent field of 0: read as 1.m * 2^-14,
  // it is too large by exactly 2^-14.
  const float subnormal =
      BitCast<float>(magnitude + kSmallestNormal + kRebias) - 0x1p-14f;
  const int32_t normal =
      magnitude + Select(magnitude >= kInfinity, 2 * kRebias, kRebias);
  const int32_t bits =
      Select(magnitude < kSmallestNormal, BitCast<int32_t>(subnormal), normal);
  return BitCast<float>(bits | sign);
}

// Rounds to nearest, ties to even.
template <typename T>
T FromFloat(float value);

template <>
inline float FromFloat(float value) {
  return value;
}

template <>
inline BFloat16 FromFloat(float value) {
  const uint32_t bits = BitCast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40;
  return {static_cast<uint16_t>(std::isnan(value) ? quiet_nan : rounded)};
}

template <>
inline Float16 FromFloat(float value) {
  constexpr int32_t kFloatInfinity = 0x7f800000;
  constexpr int32_t kOverflow = (127 + 16) << 23;
  constexpr int32_t kSmallestNormal = (127 - 14) << 23;
  constexpr int32_t kRebias = (127 - 15) << 23;
  const int32_t all = BitCast<int32_t>(value);
  const int32_t bits = all & 0x7fffffff;
  // Rounds into the exponent on purpose: from 65520 on the result is infinity.
  const int32_t normal = (bits - kRebias + 0xfff + ((bits >> 13) & 1)) >> 13;
  // The last bit of a float near 0.5 is worth 2^-24, as the last of a
  // subnormal: the addition does the rounding.
  const int32_t subnormal =
      BitCast<int32_t>(BitCast<float>(bits) + 0.5f) - BitCast<int32_t>(0.5f);
  const int32_t special = Select(bits > kFloatInfinity, 0x7e00, 0x7c00);
  const int32_t finite = Select(bits < kSmallestNormal, subnormal, normal);
  const int32_t magnitude = Select(bits >= kOverflow, special, finite);
  const int32_t sign = (all >> 16) & 0x8000;
  return {static_cast<uint16_t>(magnitude | sign)};
}

// --- Rows ------------------------------------------------------------------

// A sum of floats in source order does not vectorize, since float addition does
// not associate. So each sum is kept in lanes, element i in lane i % kLanes,
// and the lanes are added in order: vectorized, and the same bits on every
// machine.
constexpr int64_t kLanes = 16;

// Sums term(i) for i in [0, size).
template <typename Term>
inline float LaneSum(int64_t size, const Term& term) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (int64_t lane = 0; i + lane < size; ++lane) lanes[lane] += term(i + lane);
  float sum = 0;
  for (float lane : lanes) sum += lane;
  return sum;
}

// Returns the row in float: the row itself, or its conversion in `scratch`.
template <typename T>
inline const float* FloatRow(const T* row, int64_t width, float* scratch) {
  if constexpr (std::is_same_v<T, float>) {
    return row;
  } else {
    for (int64_t d = 0; d < width; ++d) scratch[d] = ToFloat(row[d]);
    return scratch;
  }
}

struct Statistics {
  float mean;
  float rstd;
};

// Two passes over x: mean first, then the centered sum of squares, because
// E[x^2] - E[x]^2 cancels badly for large means.
inline Statistics RowStatistics(const float* x, int64_t width, float eps) {
  const float count = static_cast<float>(width);
  const float mean = LaneSum(width, [=](int64_t d) { return x[d]; }) / count;
  const float variance = LaneSum(width,
                                 [=](int64_t d) {
                                   const float centered = x[d] - mean;
                                   return centered * centered;
                                 }) /
                         count;
  return {mean, 1.0f / std::sqrt(variance + eps)};
}

// With g = dy * (1 + scale) and x_hat = (x - mean) * rstd:
//   dx = rstd * (g - average(g) - x_hat * average(g * x_hat)).
template <typename T>
inline void RowGradient(const float* x, const float* dy, const float* gain,
                        int64_t width, Statistics stats, T* dx) {
  const float mean = stats.mean, rstd = stats.rstd;
  const float count = static_cast<float>(width);
  const float g =
      LaneSum(width, [=](int64_t d) { return dy[d] * gain[d]; }) / count;
  const float g_x_hat =
      LaneSum(
          width,
          [=](int64_t d) { return dy[d] * gain[d] * ((x[d] - mean) * rstd); }) /
      count;
  for (int64_t d = 0; d < width; ++d) {
    const float x_hat = (x[d] - mean) * rstd;
    dx[d] = FromFloat<T>(rstd * (dy[d] * gain[d] - g - x_hat * g_x_hat));
  }
}

}  // namespace

// --- Launchers -------------------------------------------------------------

template <typename T, typename M>
void LayerNormModulateFwd(const LayerNormModulateShape& shape, float eps,
                          const T* x, const M* scale, const M* shift, T* y,
                          float* mean, float* rstd) {
  const int64_t width = shape.width;
  std::vector<float> gain(width), offset(width), scratch(width);
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t d = 0; d < width; ++d) {
      gain[d] = 1.0f + ToFloat(scale[b * width + d]);
      offset[d] = ToFloat(shift[b * width + d]);
    }
    for (int64_t row = b * shape.tokens; row < (b + 1) * shape.tokens; ++row) {
      const float* x_row = FloatRow(x + row * width, width, scratch.data());
      const Statistics stats = RowStatistics(x_row, width, eps);
      mean[row] = stats.mean;
      rstd[row] = stats.rstd;
      T* y_row = y + row * width;
      for (int64_t d = 0; d < width; ++d) {
        const float x_hat = (x_row[d] - stats.mean) * stats.rstd;
        y_row[d] = FromFloat<T>(x_hat * gain[d] + offset[d]);
      }
    }
  }
}

// x_hat is computed again from x, so that only the two statistics are saved.
template <typename T, typename M>
void LayerNormModulateBwd(const LayerNormModulateShape& shape, const T* x,
                          const M* scale, const float* mean, const float* rstd,
                          const T* dy, T* dx, M* dscale, M* dshift) {
  const int64_t width = shape.width;
  std::vector<float> gain(width), x_scratch(width), dy_scratch(width);
  std::vector<float> scale_sum(width), shift_sum(width);
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t d = 0; d < width; ++d) {
      gain[d] = 1.0f + ToFloat(scale[b * width + d]);
    }
    std::fill(scale_sum.begin(), scale_sum.end(), 0.0f);
    std::fill(shift_sum.begin(), shift_sum.end(), 0.0f);
    for (int64_t row = b * shape.tokens; row < (b + 1) * shape.tokens; ++row) {
      const float* x_row = FloatRow(x + row * width, width, x_scratch.data());
      const float* dy_row =
          FloatRow(dy + row * width, width, dy_scratch.data());
      const Statistics stats = {mean[row], rstd[row]};
      for (int64_t d = 0; d < width; ++d) {
        scale_sum[d] += dy_row[d] * ((x_row[d] - stats.mean) * stats.rstd);
        shift_sum[d] += dy_row[d];
      }
      RowGradient(x_row, dy_row, gain.data(), width, stats, dx + row * width);
    }
    for (int64_t d = 0; d < width; ++d) {
      dscale[b * width + d] = FromFloat<M>(scale_sum[d]);
      dshift[b * width + d] = FromFloat<M>(shift_sum[d]);
    }
  }
}

// --- Instantiations --------------------------------------------------------

template void LayerNormModulateFwd(const LayerNormModulateShape&, float,
                                   const float*, const float*, const float*,
                                   float*, float*, float*);
template void LayerNormModulateFwd(const LayerNormModulateShape&, float,
                                   const BFloat16*, const float*, const float*,
                                   BFloat16*, float*, float*);
template void LayerNormModulateFwd(const LayerNormModulateShape&, float,
                                   const BFloat16*, const BFloat16*,
                                   const BFloat16*, BFloat16*, float*, float*);
template void LayerNormModulateFwd(const LayerNormModulateShape&, float,
                                   const Float16*, const float*, const float*,
                                   Float16*, float*, float*);
template void LayerNormModulateFwd(const LayerNormModulateShape&, float,
                                   const Float16*, const Float16*,
                                   const Float16*, Float16*, float*, float*);

template void LayerNormModulateBwd(const LayerNormModulateShape&, const float*,
                                   const float*, const float*, const float*,
                                   const float*, float*, float*, float*);
template void LayerNormModulateBwd(const LayerNormModulateShape&,
                                   const BFloat16*, const float*, const float*,
                                   const float*, const BFloat16*, BFloat16*,
                                   float*, float*);
template void LayerNormModulateBwd(const LayerNormModulateShape&,
                                   const BFloat16*, const BFloat16*,
                                   const float*, const float*, const BFloat16*,
                                   BFloat16*, BFloat16*, BFloat16*);
template void LayerNormModulateBwd(const LayerNormModulateShape&,
                                   const Float16*, const float*, const float*,
                                   const float*, const Float16*, Float16*,
                                   float*, float*);
template void LayerNormModulateBwd(const LayerNormModulateShape&,
                                   const Float16*, const Float16*, const float*,
                                   const float*, const Float16*, Float16*,
                                   Float16*, Float16*);

}  // namespace jaxload::cpu
