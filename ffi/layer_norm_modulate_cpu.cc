// SPDX-License-Identifier: Apache-2.0
//
// Divides the rows of layer_norm_modulate among threads. The division depends
// only on the shape, so that no sum depends on the number of threads.

#include "layer_norm_modulate_cpu.h"

#include <algorithm>
#include <cstdint>

#include "isa.h"
#include "layer_norm_modulate.h"
#include "layer_norm_modulate_cpu_rows.h"
#include "thread_pool.h"

namespace jaxload::cpu {
namespace {

// Bytes of one input. Waking another thread is worth kBytesPerThread. Work
// items are smaller than that, so that threads finish at about the same time.
constexpr int64_t kBytesPerThread = 1 << 18;
constexpr int64_t kBytesPerItem = 1 << 17;

int64_t MaxThreads(int64_t bytes) { return bytes / kBytesPerThread; }

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <Isa isa>
struct IsaConstant {
  static constexpr Isa value = isa;
};

// Calls visit(IsaConstant) with `isa` as a compile-time constant.
template <typename Visitor>
void WithIsa(Isa isa, const Visitor& visit) {
#ifdef __x86_64__
  if (isa == Isa::kAvx512) return visit(IsaConstant<Isa::kAvx512>());
  if (isa == Isa::kAvx2) return visit(IsaConstant<Isa::kAvx2>());
#endif
  visit(IsaConstant<Isa::kPortable>());
}

}  // namespace

template <bool kGated, typename T>
void LayerNormModulateFwd(Isa isa, ThreadPool& pool,
                          const LayerNormModulateFwdArguments<T>& arguments) {
  const int64_t num_rows = arguments.shape.batch * arguments.shape.tokens;
  const int64_t row_bytes =
      std::max<int64_t>(arguments.shape.width * sizeof(T), 1);
  const int64_t rows_per_item = std::max<int64_t>(kBytesPerItem / row_bytes, 1);
  WithIsa(isa, [&](auto constant) {
    ParallelFor(pool, MaxThreads(num_rows * row_bytes),
                CeilDiv(num_rows, rows_per_item), [&](int64_t item) {
                  const int64_t begin = item * rows_per_item;
                  const int64_t end = std::min(begin + rows_per_item, num_rows);
                  FwdRows<decltype(constant)::value, kGated>(arguments, begin,
                                                             end);
                });
  });
}

template <bool kGated, typename T>
void LayerNormModulateBwd(Isa isa, ThreadPool& pool,
                          const LayerNormModulateBwdArguments<T>& arguments) {
  constexpr int64_t kNumSums = kGated ? 3 : 2;
  float* const sums[] = {arguments.dscale, arguments.dshift, arguments.dgate};
  const int64_t batch = arguments.shape.batch;
  const int64_t tokens = arguments.shape.tokens;
  const int64_t width = arguments.shape.width;
  if (width == 0) return;  // All results are empty; their pointers may be null.
  const int64_t run_length =
      std::max<int64_t>(CeilDiv(tokens, arguments.num_runs), 1);
  const int64_t num_runs = CeilDiv(tokens, run_length);
  const int64_t run_stride = kNumSums * width;
  const int64_t sample_stride = arguments.num_runs * run_stride;

  WithIsa(isa, [&](auto constant) {
    ParallelFor(
        pool, MaxThreads(batch * tokens * width * sizeof(T)), batch * num_runs,
        [&](int64_t item) {
          const int64_t sample = item / num_runs;
          const int64_t run = item % num_runs;
          const int64_t begin = sample * tokens + run * run_length;
          const int64_t end =
              std::min(begin + run_length, (sample + 1) * tokens);
          BwdRows<decltype(constant)::value, kGated>(
              arguments, begin, end,
              arguments.workspace + sample * sample_stride + run * run_stride);
        });
    ParallelFor(pool, MaxThreads(batch * num_runs * run_stride * sizeof(float)),
                batch * kNumSums, [&](int64_t item) {
                  const int64_t sample = item / kNumSums, i = item % kNumSums;
                  SumRows<decltype(constant)::value>(
                      arguments.workspace + sample * sample_stride + i * width,
                      num_runs, run_stride, width, sums[i] + sample * width);
                });
  });
}

// --- Instantiations --------------------------------------------------------

#define JAXLOAD_INSTANTIATE(kGated, T)                            \
  template void LayerNormModulateFwd<kGated>(                     \
      Isa, ThreadPool&, const LayerNormModulateFwdArguments<T>&); \
  template void LayerNormModulateBwd<kGated>(                     \
      Isa, ThreadPool&, const LayerNormModulateBwdArguments<T>&)

JAXLOAD_INSTANTIATE(false, float);
JAXLOAD_INSTANTIATE(false, BFloat16);
JAXLOAD_INSTANTIATE(false, Float16);
JAXLOAD_INSTANTIATE(true, float);
JAXLOAD_INSTANTIATE(true, BFloat16);
JAXLOAD_INSTANTIATE(true, Float16);

}  // namespace jaxload::cpu
