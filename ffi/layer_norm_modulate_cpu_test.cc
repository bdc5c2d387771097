// SPDX-License-Identifier: Apache-2.0
//
// Runs the CPU kernels with every instruction set of this machine and with four
// thread pools, and checks that all results are equal bit for bit. Prints the
// number of comparisons; or prints the first difference and returns 1.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "isa.h"
#include "layer_norm_modulate.h"
#include "layer_norm_modulate_cpu.h"
#include "thread_pool.h"

namespace jaxload {
namespace {

// Sets whether this thread flushes subnormals to 0, as XLA's threads do.
void FlushSubnormals([[maybe_unused]] bool flush) {
#ifdef __x86_64__
  _MM_SET_FLUSH_ZERO_MODE(flush ? _MM_FLUSH_ZERO_ON : _MM_FLUSH_ZERO_OFF);
  _MM_SET_DENORMALS_ZERO_MODE(flush ? _MM_DENORMALS_ZERO_ON
                                    : _MM_DENORMALS_ZERO_OFF);
#endif
}

// --- Pools -----------------------------------------------------------------

// A pool whose threads are busy until the kernel has returned.
class LatePool : public ThreadPool {
 public:
  ~LatePool() override {
    for (const auto& task : tasks_) task();
  }
  int64_t num_threads() const override { return 3; }
  void Schedule(std::function<void()> task) override {
    tasks_.push_back(std::move(task));
  }

 private:
  std::vector<std::function<void()>> tasks_;
};

// A pool of idle threads; `flush` sets whether they flush subnormals to 0.
class EagerPool : public ThreadPool {
 public:
  explicit EagerPool(bool flush) : flush_(flush) {}
  ~EagerPool() override {
    for (std::thread& thread : threads_) thread.join();
  }
  int64_t num_threads() const override { return 5; }
  void Schedule(std::function<void()> task) override {
    threads_.emplace_back([this, task = std::move(task)] {
      FlushSubnormals(flush_);
      task();
    });
  }

 private:
  const bool flush_;
  std::vector<std::thread> threads_;
};

// A pool that runs out of memory at every second task, while others run.
class PoorPool : public EagerPool {
 public:
  using EagerPool::EagerPool;
  void Schedule(std::function<void()> task) override {
    if (++num_tasks_ % 2 == 0) throw std::bad_alloc();
    EagerPool::Schedule(std::move(task));
  }

 private:
  int64_t num_tasks_ = 0;
};

// A pool that runs tasks on the calling thread, as XLA does without a pool.
class InlinePool : public ThreadPool {
 public:
  int64_t num_threads() const override { return 2; }
  void Schedule(std::function<void()> task) override { task(); }
};

// --- Arrays ----------------------------------------------------------------

// An array that starts `offset` elements after the start of a cache line. An
// empty array has a null pointer.
template <typename T>
class Array {
 public:
  Array(int64_t size, int64_t offset)
      : storage_(size + offset + kLine), size_(size) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    first_ = (64 - address % 64) % 64 / sizeof(T) + offset;
  }
  T* data() { return size_ == 0 ? nullptr : storage_.data() + first_; }
  int64_t size() const { return size_; }

 private:
  static constexpr int64_t kLine = 64 / sizeof(T);
  std::vector<T> storage_;
  int64_t size_;
  int64_t first_;
};

// Returns a value of ordinary size, or a special one: subnormal, infinite or
// NaN. Special values have rows of their own, so that other results are finite.
template <typename T>
T Random(std::mt19937& random, bool special) {
  constexpr int kMantissa = std::is_same_v<T, BFloat16> ? 7 : 10;
  constexpr int kBias = std::is_same_v<T, BFloat16> ? 127 : 15;
  if constexpr (std::is_same_v<T, float>) {
    if (special) return 1e-39f * static_cast<float>(random() % 100);
    return std::normal_distribution<float>()(random);
  } else {
    if (special) return {static_cast<uint16_t>(random())};
    const uint32_t exponent = kBias - random() % 4;
    const uint32_t mantissa = random() % (1 << kMantissa);
    const uint32_t sign = random() % 2;
    return {
        static_cast<uint16_t>(sign << 15 | exponent << kMantissa | mantissa)};
  }
}

template <typename T>
Array<T> RandomArray(std::mt19937& random, int64_t size, int64_t width,
                     int64_t offset) {
  constexpr int64_t kPeriod = 1 << 16;  // Larger arrays repeat, to save time.
  Array<T> array(size, offset);
  for (int64_t i = 0; i < size; ++i) {
    array.data()[i] = i < kPeriod
                          ? Random<T>(random, width > 0 && i / width % 5 == 4)
                          : array.data()[i - kPeriod];
  }
  return array;
}

bool Equal(float a, float b) {
  return (a != a && b != b) || std::memcmp(&a, &b, sizeof(a)) == 0;
}

template <typename T>
bool Equal(T a, T b) {
  constexpr uint16_t kInfinity = std::is_same_v<T, BFloat16> ? 0x7f80 : 0x7c00;
  const auto is_nan = [](T x) { return (x.bits & 0x7fff) > kInfinity; };
  return (is_nan(a) && is_nan(b)) || a.bits == b.bits;
}

// --- Runs ------------------------------------------------------------------

struct Case {
  LayerNormModulateShape shape;
  int64_t num_runs;
  int64_t offset;
};

template <typename T>
struct Inputs {
  Array<T> x, h, dy, dresidual;
  Array<float> scale, shift, gate;
};

template <typename T>
Inputs<T> MakeInputs(const Case& c, uint32_t seed) {
  std::mt19937 random(seed);
  const int64_t modulations = c.shape.batch * c.shape.width;
  const int64_t activations = modulations * c.shape.tokens;
  const auto activation = [&] {
    return RandomArray<T>(random, activations, c.shape.width, c.offset);
  };
  const auto modulation = [&] {
    return RandomArray<float>(random, modulations, 0, c.offset);
  };
  return {activation(), activation(), activation(), activation(),
          modulation(), modulation(), modulation()};
}

template <typename T>
struct Outputs {
  std::vector<Array<T>> activations;  // residual, y, dx, dh.
  std::vector<Array<float>> others;   // mean, rstd, dscale, dshift, dgate.
};

template <bool kGated, typename T>
Outputs<T> Run(const Case& c, Inputs<T>& in, Isa isa, ThreadPool& pool) {
  const int64_t rows = c.shape.batch * c.shape.tokens;
  const int64_t modulations = c.shape.batch * c.shape.width;
  Outputs<T> out;
  for (int i = 0; i < 4; ++i) {
    out.activations.emplace_back(rows * c.shape.width, c.offset);
  }
  for (int64_t size : {rows, rows, modulations, modulations, modulations}) {
    Array<float>& array = out.others.emplace_back(size, c.offset);
    std::fill_n(array.data(), size, 1.0f);  // A 0 is then one that Run stored.
  }
  Array<float> workspace(modulations * c.num_runs * 3, c.offset);

  LayerNormModulateFwdArguments<T> fwd = {};
  fwd.shape = c.shape;
  fwd.eps = 1e-6f;
  fwd.x = in.x.data();
  fwd.scale = in.scale.data();
  fwd.shift = in.shift.data();
  fwd.y = out.activations[1].data();
  fwd.mean = out.others[0].data();
  fwd.rstd = out.others[1].data();
  if (kGated) {
    fwd.h = in.h.data();
    fwd.gate = in.gate.data();
    fwd.residual = out.activations[0].data();
  }
  cpu::LayerNormModulateFwd<kGated>(isa, pool, fwd);

  LayerNormModulateBwdArguments<T> bwd = {};
  bwd.shape = c.shape;
  bwd.x = fwd.x;
  bwd.scale = fwd.scale;
  bwd.mean = fwd.mean;
  bwd.rstd = fwd.rstd;
  bwd.dy = in.dy.data();
  bwd.dx = out.activations[2].data();
  bwd.dscale = out.others[2].data();
  bwd.dshift = out.others[3].data();
  bwd.workspace = workspace.data();
  bwd.num_runs = c.num_runs;
  if (kGated) {
    bwd.h = fwd.h;
    bwd.gate = fwd.gate;
    bwd.dresidual = in.dresidual.data();
    bwd.dh = out.activations[3].data();
    bwd.dgate = out.others[4].data();
  }
  cpu::LayerNormModulateBwd<kGated>(isa, pool, bwd);
  return out;
}

// --- Comparisons -----------------------------------------------------------

int num_comparisons = 0;

template <typename T>
void Compare(const std::string& what, std::vector<Array<T>>& actual,
             std::vector<Array<T>>& desired) {
  for (size_t i = 0; i < actual.size(); ++i) {
    for (int64_t j = 0; j < actual[i].size(); ++j) {
      if (Equal(actual[i].data()[j], desired[i].data()[j])) continue;
      std::printf("%s: result %zu differs at element %lld\n", what.c_str(), i,
                  static_cast<long long>(j));
      std::exit(1);
    }
  }
  ++num_comparisons;
}

// Checks that the sums over zero tokens are 0.
template <bool kGated>
void CheckSumsAreZero(const std::string& what,
                      std::vector<Array<float>>& others) {
  for (size_t i = 2; i < (kGated ? 5 : 4); ++i) {
    for (int64_t j = 0; j < others[i].size(); ++j) {
      if (Equal(others[i].data()[j], 0.0f)) continue;
      std::printf("%s: sum %zu of nothing is not 0\n", what.c_str(), i);
      std::exit(1);
    }
  }
}

constexpr std::pair<Isa, const char*> kIsas[] = {{Isa::kPortable, "portable"},
                                                 {Isa::kAvx2, "avx2"},
                                                 {Isa::kAvx512, "avx512"}};

template <bool kGated, typename T>
void CompareAll(const char* type, const Case& c, bool flush) {
  FlushSubnormals(flush);
  Inputs<T> inputs = MakeInputs<T>(c, /*seed=*/c.shape.width);
  LatePool late;  // Everything runs on the calling thread.
  Outputs<T> desired = Run<kGated>(c, inputs, Isa::kPortable, late);
  for (const auto& [isa, isa_name] : kIsas) {
    if (!Supports(isa)) continue;
    std::pair<const char*, std::unique_ptr<ThreadPool>> pools[] = {
        {"late", std::make_unique<LatePool>()},
        {"eager", std::make_unique<EagerPool>(!flush)},
        {"poor", std::make_unique<PoorPool>(!flush)},
        {"inline", std::make_unique<InlinePool>()}};
    for (auto& [pool_name, pool] : pools) {
      Outputs<T> actual = Run<kGated>(c, inputs, isa, *pool);
      const std::string what = std::string(type) + (kGated ? ", gated" : "") +
                               ", [" + std::to_string(c.shape.batch) + ", " +
                               std::to_string(c.shape.tokens) + ", " +
                               std::to_string(c.shape.width) + "], " +
                               isa_name + ", " + pool_name + " pool" +
                               (flush ? ", subnormals flushed" : "");
      Compare(what, actual.activations, desired.activations);
      Compare(what, actual.others, desired.others);
      if (c.shape.tokens == 0) CheckSumsAreZero<kGated>(what, actual.others);
    }
  }
}

void CompareAll(const Case& c) {
  const bool is_large = c.shape.tokens * c.shape.width > 1 << 20;
  for (const bool flush : {true, false}) {
    if (is_large && !flush) continue;  // To save time.
    CompareAll<false, float>("float", c, flush);
    CompareAll<true, float>("float", c, flush);
    CompareAll<false, BFloat16>("bfloat16", c, flush);
    CompareAll<true, BFloat16>("bfloat16", c, flush);
    CompareAll<false, Float16>("float16", c, flush);
    CompareAll<true, Float16>("float16", c, flush);
  }
}

int Main() {
  std::vector<Case> cases = {
      {{0, 3, 8}, 1, 0},        {{2, 0, 8}, 1, 0}, {{2, 3, 0}, 1, 0},
      {{0, 0, 0}, 2, 0},        {{1, 1, 1}, 1, 0}, {{3, 7, 1023}, 4, 1},
      {{2, 300, 1536}, 10, 0},   // Enough for several threads.
      {{1, 2100, 4096}, 64, 0},  // Streamed, also in 16 bits.
      {{1, 2100, 4096}, 64, 1},  // Not streamed, because not aligned.
  };
  std::mt19937 random(0);
  for (int i = 0; i < 30; ++i) {
    const auto up_to = [&](int64_t n) { return int64_t(random() % n) + 1; };
    cases.push_back(
        {{up_to(4), up_to(70), up_to(200)}, up_to(9), int64_t(random() % 2)});
  }
  for (const Case& c : cases) CompareAll(c);
  std::printf("%d comparisons:", num_comparisons);
  for (const auto& [isa, name] : kIsas) {
    if (Supports(isa)) std::printf(" %s", name);
  }
  std::printf("\n");
  return 0;
}

}  // namespace
}  // namespace jaxload

int main() { return jaxload::Main(); }
