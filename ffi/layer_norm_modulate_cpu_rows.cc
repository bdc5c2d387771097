// SPDX-License-Identifier: Apache-2.0
//
// Loops over rows. This file is compiled once for each instruction set;
// JAXLOAD_ISA is the name of the set in Isa. See vectors.h for functions that
// must not be called here.

#include "layer_norm_modulate_cpu_rows.h"

#include <cstdint>

#include "isa.h"
#include "layer_norm_modulate.h"
#include "vectors.h"

namespace jaxload::cpu {
namespace {

// Number of rows in a block. Two rows are processed at a time: modulations are
// loaded once for both, and additions of one row need not wait for the other's.
template <int n>
struct NumRows {
  static constexpr int value = n;
};

// Splits rows [begin, end) into blocks of one or two rows of the same sample.
// Calls block(NumRows<n>, row) for each block of n rows that starts at `row`.
template <typename Block>
inline void ForEachBlock(int64_t begin, int64_t end, int64_t tokens,
                         const Block& block) {
  for (int64_t row = begin; row < end;) {
    const int64_t sample_end = (row / tokens + 1) * tokens;
    const int64_t last = end < sample_end ? end : sample_end;
    for (; row + 2 <= last; row += 2) block(NumRows<2>(), row);
    if (row < last) block(NumRows<1>(), row++);
  }
}

// The loops below take pointers and numbers by value. Otherwise the compiler
// assumes that a vector store may change them, and reloads them.

// One number per row of a block.
template <int kRows>
struct PerRow {
  float values[kRows];
  float operator[](int i) const { return values[i]; }
  float& operator[](int i) { return values[i]; }
};

template <int kRows>
struct Statistics {
  PerRow<kRows> mean;
  PerRow<kRows> rstd;
};

template <int kRows>
inline PerRow<kRows> Averages(const Sum* sums, int64_t width) {
  PerRow<kRows> averages;
  for (int i = 0; i < kRows; ++i) {
    averages[i] = sums[i].Total() / static_cast<float>(width);
  }
  return averages;
}

// Prefetches the inputs of the next block. The last pass over a block only
// stores, so its memory reads are free for prefetching. Small arrays, which are
// not streamed, are in the cache anyway.
template <int kNumArrays, Output output, typename T>
class NextBlock {
 public:
  // Uses the first kNumArrays of the arrays; the others may be null.
  NextBlock(const T* const* arrays, int64_t first) {
    for (int i = 0; i < kNumArrays; ++i) arrays_[i] = arrays[i] + first;
  }

  void Prefetch(int64_t at) const {
    if constexpr (output == Output::kStreamed) {
      for (int i = 0; i < kNumArrays; ++i) __builtin_prefetch(arrays_[i] + at);
    }
  }

 private:
  const T* arrays_[kNumArrays];
};

// --- Forward ---------------------------------------------------------------

template <int kRows, typename T>
inline PerRow<kRows> Means(const T* x, int64_t width) {
  Sum sums[kRows];
  ForEachElement(width, [=, &sums](auto access, int64_t d) {
    for (int i = 0; i < kRows; ++i) {
      sums[i].Add(access, access.Load(x + i * width + d));
    }
  });
  return Averages<kRows>(sums, width);
}

// Stores the residual, x + gate * h, and returns its means after rounding.
template <int kRows, typename T>
inline PerRow<kRows> StoreResidual(const T* x, const T* h, const float* gate,
                                   int64_t width, T* residual) {
  Sum sums[kRows];
  ForEachElement(width, [=, &sums](auto access, int64_t d) {
    const auto gate_d = access.Load(gate + d);
    for (int i = 0; i < kRows; ++i) {
      const int64_t at = i * width + d;
      access.Store(access.Load(x + at) + gate_d * access.Load(h + at),
                   residual + at);
      sums[i].Add(access, access.Load(residual + at));
    }
  });
  return Averages<kRows>(sums, width);
}

// Returns 1 / standard deviation of each row. Sums centered squares in a second
// pass over x, because E[x^2] - E[x]^2 cancels badly for large means.
template <int kRows, typename T>
inline PerRow<kRows> Rstds(const T* x, PerRow<kRows> mean, int64_t width,
                           float eps) {
  Sum squares[kRows];
  ForEachElement(width, [=, &squares](auto access, int64_t d) {
    for (int i = 0; i < kRows; ++i) {
      const auto centered = access.Load(x + i * width + d) - mean[i];
      squares[i].Add(access, centered * centered);
    }
  });
  PerRow<kRows> rstd = Averages<kRows>(squares, width);
  for (int i = 0; i < kRows; ++i) {
    rstd[i] = 1.0f / __builtin_sqrtf(rstd[i] + eps);
  }
  return rstd;
}

template <Output output, int kRows, typename T, typename Next>
inline void Modulate(const T* x, Statistics<kRows> stats, const float* scale,
                     const float* shift, int64_t width, Next next, T* y) {
  ForEachElement(width, [=](auto access, int64_t d) {
    const auto gain = 1.0f + access.Load(scale + d);
    const auto offset = access.Load(shift + d);
    for (int i = 0; i < kRows; ++i) {
      const int64_t at = i * width + d;
      next.Prefetch(at);
      const auto x_hat = (access.Load(x + at) - stats.mean[i]) * stats.rstd[i];
      access.template Store<output>(x_hat * gain + offset, y + at);
    }
  });
}

template <bool kGated, int kRows, Output output, typename T>
inline void FwdBlock(const LayerNormModulateFwdArguments<T>& a, int64_t row) {
  const int64_t width = a.shape.width;
  const int64_t first = row * width;
  const int64_t sample = row / a.shape.tokens * width;
  const T* x = a.x + first;
  Statistics<kRows> stats;
  if constexpr (kGated) {
    stats.mean = StoreResidual<kRows>(x, a.h + first, a.gate + sample, width,
                                      a.residual + first);
    x = a.residual + first;
  } else {
    stats.mean = Means<kRows>(x, width);
  }
  stats.rstd = Rstds<kRows>(x, stats.mean, width, a.eps);
  // A store to the residual also fetches its cache line first. Prefetching x, h
  // and the residual is too much at once. The slowest to arrive were the
  // residual for float, and x and h for 16-bit floats.
  constexpr bool kNeedsResidual = kGated && sizeof(T) == sizeof(float);
  const T* const arrays[] = {kNeedsResidual ? a.residual : a.x, a.h};
  const NextBlock<kGated && !kNeedsResidual ? 2 : 1, output, T> next(
      arrays, first + kRows * width);
  Modulate<output>(x, stats, a.scale + sample, a.shift + sample, width, next,
                   a.y + first);
  for (int i = 0; i < kRows; ++i) {
    a.mean[row + i] = stats.mean[i];
    a.rstd[row + i] = stats.rstd[i];
  }
}

// --- Backward --------------------------------------------------------------
//
// With g = dy * (1 + scale) and x_hat = (x - mean) * rstd:
//   dx = rstd * (g - average(g) - x_hat * average(g * x_hat)).
// The gated form adds the residual's gradient to dx, and has dh = dx * gate.

// Inputs of a block of rows.
template <int kRows, typename T>
struct BwdBlockInputs {
  int64_t width;
  const T* x;
  const T* dy;
  const float* scale;
  Statistics<kRows> stats;
};

template <int kRows>
struct GradientAverages {
  PerRow<kRows> g;
  PerRow<kRows> g_x_hat;
};

// Returns the averages of g and g * x_hat; adds the rows to dscale and dshift.
template <int kRows, typename T>
inline GradientAverages<kRows> AverageGradients(BwdBlockInputs<kRows, T> in,
                                                float* dscale, float* dshift) {
  Sum g_sums[kRows], g_x_hat_sums[kRows];
  ForEachElement(in.width, [=, &g_sums, &g_x_hat_sums](auto access, int64_t d) {
    const auto gain = 1.0f + access.Load(in.scale + d);
    auto dscale_d = access.Load(dscale + d);
    auto dshift_d = access.Load(dshift + d);
    for (int i = 0; i < kRows; ++i) {
      const int64_t at = i * in.width + d;
      const auto x_hat =
          (access.Load(in.x + at) - in.stats.mean[i]) * in.stats.rstd[i];
      const auto dy = access.Load(in.dy + at);
      const auto g = dy * gain;
      g_sums[i].Add(access, g);
      g_x_hat_sums[i].Add(access, g * x_hat);
      dscale_d += dy * x_hat;
      dshift_d += dy;
    }
    access.Store(dscale_d, dscale + d);
    access.Store(dshift_d, dshift + d);
  });
  return {Averages<kRows>(g_sums, in.width),
          Averages<kRows>(g_x_hat_sums, in.width)};
}

// Calls store(access, d, i, dx) for each element d of row i. dx is the gradient
// of the normalized input; it does not include the residual's own gradient.
template <int kRows, typename T, typename Next, typename Store>
inline void ForEachGradient(BwdBlockInputs<kRows, T> in,
                            GradientAverages<kRows> average, Next next,
                            const Store& store) {
  ForEachElement(in.width, [=](auto access, int64_t d) {
    const auto gain = 1.0f + access.Load(in.scale + d);
    for (int i = 0; i < kRows; ++i) {
      const int64_t at = i * in.width + d;
      next.Prefetch(at);
      const auto x_hat =
          (access.Load(in.x + at) - in.stats.mean[i]) * in.stats.rstd[i];
      const auto g = access.Load(in.dy + at) * gain;
      store(access, d, i,
            in.stats.rstd[i] * (g - average.g[i] - x_hat * average.g_x_hat[i]));
    }
  });
}

// Adds a block's sums over rows to `sums`: dscale, dshift and, if gated, dgate.
template <bool kGated, int kRows, Output output, typename T>
inline void BwdBlock(const LayerNormModulateBwdArguments<T>& a, int64_t row,
                     float* sums) {
  const int64_t width = a.shape.width;
  const int64_t first = row * width;
  const int64_t sample = row / a.shape.tokens * width;
  BwdBlockInputs<kRows, T> in = {
      width, a.x + first, a.dy + first, a.scale + sample, {}};
  for (int i = 0; i < kRows; ++i) {
    in.stats.mean[i] = a.mean[row + i];
    in.stats.rstd[i] = a.rstd[row + i];
  }
  if constexpr (kGated) {
    // dh holds the residual until dh itself is stored. Each element of the
    // residual is read for the last time before dh overwrites it.
    StoreResidual<kRows>(in.x, a.h + first, a.gate + sample, width,
                         a.dh + first);
    in.x = a.dh + first;
  }
  const GradientAverages<kRows> averages =
      AverageGradients(in, sums, sums + width);
  const T* const arrays[] = {a.x, a.dy, a.h, a.dresidual, a.dh};
  const NextBlock<kGated ? 5 : 2, output, T> next(arrays,
                                                  first + kRows * width);
  T* dx = a.dx + first;
  if constexpr (kGated) {
    const T* h = a.h + first;
    const T* dresidual = a.dresidual + first;
    const float* gate = a.gate + sample;
    T* dh = a.dh + first;
    float* dgate = sums + 2 * width;
    ForEachGradient(
        in, averages, next, [=](auto access, int64_t d, int i, auto dln) {
          const int64_t at = i * width + d;
          const auto total = access.Load(dresidual + at) + dln;
          access.template Store<output>(total, dx + at);
          // Not streamed: streaming would evict the cache line, whose other
          // elements still hold residuals to read.
          access.Store(total * access.Load(gate + d), dh + at);
          access.Store(access.Load(dgate + d) + total * access.Load(h + at),
                       dgate + d);
        });
  } else {
    ForEachGradient(in, averages, next,
                    [=](auto access, int64_t d, int i, auto dln) {
                      access.template Store<output>(dln, dx + i * width + d);
                    });
  }
}

// --- Outputs ---------------------------------------------------------------

// Results of this size or more are streamed: by the time that they are read, a
// core's caches would no longer hold them.
constexpr int64_t kLargeBytes = 16 << 20;

template <Output output>
struct OutputConstant {
  static constexpr Output value = output;
};

// Calls run(OutputConstant), streamed if the results are aligned and large.
template <typename Run>
inline void WithOutput(int64_t bytes, bool aligned, const Run& run) {
  if (aligned && bytes >= kLargeBytes) {
    run(OutputConstant<Output::kStreamed>());
    EndStream();
  } else {
    run(OutputConstant<Output::kCached>());
  }
}

template <typename T>
inline int64_t NumBytes(const LayerNormModulateShape& shape) {
  return shape.batch * shape.tokens * shape.width * sizeof(T);
}

}  // namespace

// --- Entry points ----------------------------------------------------------

template <Isa isa, bool kGated, typename T>
void FwdRows(const LayerNormModulateFwdArguments<T>& a, int64_t begin,
             int64_t end) {
  const bool aligned = IsAligned(a.y, a.shape.width);
  WithOutput(NumBytes<T>(a.shape), aligned, [&](auto output) {
    ForEachBlock(begin, end, a.shape.tokens, [&](auto num_rows, int64_t row) {
      FwdBlock<kGated, decltype(num_rows)::value, decltype(output)::value>(a,
                                                                           row);
    });
  });
}

template <Isa isa, bool kGated, typename T>
void BwdRows(const LayerNormModulateBwdArguments<T>& a, int64_t begin,
             int64_t end, float* sums) {
  const int64_t width = a.shape.width;
  __builtin_memset(sums, 0, (kGated ? 3 : 2) * width * sizeof(float));
  const bool aligned = IsAligned(a.dx, width);
  WithOutput(NumBytes<T>(a.shape), aligned, [&](auto output) {
    ForEachBlock(begin, end, a.shape.tokens, [&](auto num_rows, int64_t row) {
      BwdBlock<kGated, decltype(num_rows)::value, decltype(output)::value>(
          a, row, sums);
    });
  });
}

template <Isa isa>
void SumRows(const float* rows, int64_t num_rows, int64_t stride, int64_t width,
             float* sum) {
  __builtin_memset(sum, 0, width * sizeof(float));
  for (int64_t row = 0; row < num_rows; ++row) {
    ForEachElement(width, [&](auto access, int64_t d) {
      access.Store(access.Load(sum + d) + access.Load(rows + row * stride + d),
                   sum + d);
    });
  }
}

// --- Instantiations --------------------------------------------------------

#define JAXLOAD_INSTANTIATE_ROWS(kGated, T)                       \
  template void FwdRows<Isa::JAXLOAD_ISA, kGated>(                \
      const LayerNormModulateFwdArguments<T>&, int64_t, int64_t); \
  template void BwdRows<Isa::JAXLOAD_ISA, kGated>(                \
      const LayerNormModulateBwdArguments<T>&, int64_t, int64_t, float*)

JAXLOAD_INSTANTIATE_ROWS(false, float);
JAXLOAD_INSTANTIATE_ROWS(false, BFloat16);
JAXLOAD_INSTANTIATE_ROWS(false, Float16);
JAXLOAD_INSTANTIATE_ROWS(true, float);
JAXLOAD_INSTANTIATE_ROWS(true, BFloat16);
JAXLOAD_INSTANTIATE_ROWS(true, Float16);

template void SumRows<Isa::JAXLOAD_ISA>(const float*, int64_t, int64_t, int64_t,
                                        float*);

}  // namespace jaxload::cpu
