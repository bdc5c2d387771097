// SPDX-License-Identifier: Apache-2.0
//
// XLA handlers of layer_norm_modulate on the CPU.

#include "layer_norm_modulate_ffi.h"

#include <cstdint>
#include <exception>
#include <functional>
#include <new>
#include <string>
#include <utility>

#include "isa.h"
#include "layer_norm_modulate.h"
#include "layer_norm_modulate_cpu.h"
#include "thread_pool.h"
#include "xla/ffi/api/ffi.h"

namespace jaxload {
namespace {

// Adapts XLA's thread pool to ThreadPool.
class XlaThreadPool : public ThreadPool {
 public:
  explicit XlaThreadPool(const ffi::ThreadPool& pool) : pool_(pool) {}

  int64_t num_threads() const override { return pool_.num_threads(); }

  void Schedule(std::function<void()> task) override {
    pool_.Schedule(std::move(task));
  }

 private:
  ffi::ThreadPool pool_;
};

template <bool kGated, typename T>
void Launch(ThreadPool& pool,
            const LayerNormModulateFwdArguments<T>& arguments) {
  cpu::LayerNormModulateFwd<kGated>(BestIsa(), pool, arguments);
}

template <bool kGated, typename T>
void Launch(ThreadPool& pool,
            const LayerNormModulateBwdArguments<T>& arguments) {
  cpu::LayerNormModulateBwd<kGated>(BestIsa(), pool, arguments);
}

struct Cpu {
  using Context = ffi::ThreadPool;

  // Catches all exceptions, because XLA is built without exception support.
  template <bool kGated, typename Arguments>
  static ffi::Error Run(const char* op, const ffi::ThreadPool& xla_pool,
                        const Arguments& arguments) {
    try {
      XlaThreadPool pool(xla_pool);
      Launch<kGated>(pool, arguments);
    } catch (const std::bad_alloc&) {
      return ffi::Error(
          ffi::ErrorCode::kResourceExhausted,
          std::string(op) + ": out of memory for sharing rows between threads");
    } catch (const std::exception& error) {
      return ffi::Error::Internal(std::string(op) + ": " + error.what());
    }
    return ffi::Error::Success();
  }
};

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(LayerNormModulateFwdCpu, Fwd<Cpu>,
                              BindFwd<Cpu>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(LayerNormModulateBwdCpu, Bwd<Cpu>,
                              BindBwd<Cpu>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(GatedResidualLayerNormModulateFwdCpu,
                              GatedFwd<Cpu>, BindGatedFwd<Cpu>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(GatedResidualLayerNormModulateBwdCpu,
                              GatedBwd<Cpu>, BindGatedBwd<Cpu>());

}  // namespace jaxload
