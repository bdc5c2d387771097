// SPDX-License-Identifier: Apache-2.0

#ifndef JAXLOAD_FFI_LAYER_NORM_MODULATE_CUDA_H_
#define JAXLOAD_FFI_LAYER_NORM_MODULATE_CUDA_H_

#include <cuda_runtime_api.h>

#include "layer_norm_modulate.h"

namespace jaxload::cuda {

// Both functions enqueue kernels on `stream` and return the launch status
// without waiting.

template <bool kGated, typename T>
cudaError_t LayerNormModulateFwd(
    cudaStream_t stream, const LayerNormModulateFwdArguments<T>& arguments);

template <bool kGated, typename T>
cudaError_t LayerNormModulateBwd(
    cudaStream_t stream, const LayerNormModulateBwdArguments<T>& arguments);

}  // namespace jaxload::cuda

#endif  // JAXLOAD_FFI_LAYER_NORM_MODULATE_CUDA_H_
