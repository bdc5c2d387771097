// SPDX-License-Identifier: Apache-2.0
//
// C functions through which emulation.py calls the launchers of
// ffi/layer_norm_modulate_cuda.h.

#include "layer_norm_modulate.h"

#include <cstdint>

#include "emulator.h"
#include "layer_norm_modulate_cuda.h"

namespace jaxload::cuda {
namespace {

// Calls `launch<T>` for the type with this number, in the order of
// emulation.py.
template <typename Launcher>
int Dispatch(int dtype, const Launcher& launch) {
  switch (dtype) {
    case 0:
      return launch(float{});
    case 1:
      return launch(BFloat16{});
    case 2:
      return launch(Float16{});
  }
  return cudaErrorInvalidValue;
}

}  // namespace

CUDA_EMULATION_EXPORT int layer_norm_modulate_fwd(
    int dtype, int is_gated, const LayerNormModulateShape* shape, float eps,
    const void* x, const float* scale, const float* shift, void* y, float* mean,
    float* rstd, const void* h, const float* gate, void* residual) {
  return Dispatch(dtype, [&](auto value) {
    using T = decltype(value);
    const LayerNormModulateFwdArguments<T> arguments = {
        *shape,
        eps,
        static_cast<const T*>(x),
        scale,
        shift,
        static_cast<T*>(y),
        mean,
        rstd,
        static_cast<const T*>(h),
        gate,
        static_cast<T*>(residual),
    };
    return is_gated ? LayerNormModulateFwd<true, T>(nullptr, arguments)
                    : LayerNormModulateFwd<false, T>(nullptr, arguments);
  });
}

CUDA_EMULATION_EXPORT int layer_norm_modulate_bwd(
    int dtype, int is_gated, const LayerNormModulateShape* shape,
    int64_t num_runs, const void* x, const float* scale, const float* mean,
    const float* rstd, const void* dy, void* dx, float* dscale, float* dshift,
    float* workspace, const void* h, const float* gate, const void* dresidual,
    void* dh, float* dgate) {
  return Dispatch(dtype, [&](auto value) {
    using T = decltype(value);
    const LayerNormModulateBwdArguments<T> arguments = {
        *shape,
        static_cast<const T*>(x),
        scale,
        mean,
        rstd,
        static_cast<const T*>(dy),
        static_cast<T*>(dx),
        dscale,
        dshift,
        workspace,
        num_runs,
        static_cast<const T*>(h),
        gate,
        static_cast<const T*>(dresidual),
        static_cast<T*>(dh),
        dgate,
    };
    return is_gated ? LayerNormModulateBwd<true, T>(nullptr, arguments)
                    : LayerNormModulateBwd<false, T>(nullptr, arguments);
  });
}

}  // namespace jaxload::cuda
