// SPDX-License-Identifier: Apache-2.0
//
// XLA handlers of layer_norm_modulate on CUDA.

#include <cuda_runtime_api.h>

#include <string>

#include "layer_norm_modulate.h"
#include "layer_norm_modulate_cuda.h"
#include "layer_norm_modulate_ffi.h"
#include "xla/ffi/api/ffi.h"

namespace jaxload {
namespace {

template <bool kGated, typename T>
cudaError_t Launch(cudaStream_t stream,
                   const LayerNormModulateFwdArguments<T>& arguments) {
  return cuda::LayerNormModulateFwd<kGated>(stream, arguments);
}

template <bool kGated, typename T>
cudaError_t Launch(cudaStream_t stream,
                   const LayerNormModulateBwdArguments<T>& arguments) {
  return cuda::LayerNormModulateBwd<kGated>(stream, arguments);
}

struct Cuda {
  using Context = ffi::PlatformStream<cudaStream_t>;

  template <bool kGated, typename Arguments>
  static ffi::Error Run(const char* op, cudaStream_t stream,
                        const Arguments& arguments) {
    const cudaError_t status = Launch<kGated>(stream, arguments);
    if (status == cudaSuccess) return ffi::Error::Success();
    return ffi::Error::Internal(std::string(op) + ": " +
                                cudaGetErrorString(status));
  }
};

}  // namespace

// Handlers only enqueue kernels, so that XLA may record them in a CUDA graph.
XLA_FFI_DEFINE_HANDLER_SYMBOL(LayerNormModulateFwdCuda, Fwd<Cuda>,
                              BindFwd<Cuda>(),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(LayerNormModulateBwdCuda, Bwd<Cuda>,
                              BindBwd<Cuda>(),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(GatedResidualLayerNormModulateFwdCuda,
                              GatedFwd<Cuda>, BindGatedFwd<Cuda>(),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(GatedResidualLayerNormModulateBwdCuda,
                              GatedBwd<Cuda>, BindGatedBwd<Cuda>(),
                              {ffi::Traits::kCmdBufferCompatible});

}  // namespace jaxload
