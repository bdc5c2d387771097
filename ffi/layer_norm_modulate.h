// SPDX-License-Identifier: Apache-2.0
//
// y = layer_norm(x) * (1 + scale) + shift, and its gradients.

#ifndef JAXLOAD_FFI_LAYER_NORM_MODULATE_H_
#define JAXLOAD_FFI_LAYER_NORM_MODULATE_H_

#include <cstdint>

namespace jaxload {

// 16-bit floats as they lie in memory; all arithmetic is in float.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

// x, y, dx and dy are [batch, tokens, width]; scale, shift and their gradients
// are [batch, width]; mean and rstd are [batch, tokens]. All are row-major, and
// any size may be zero.
struct LayerNormModulateShape {
  int64_t batch;
  int64_t tokens;
  int64_t width;
};

namespace cpu {

// T is the type of the activations, M that of the modulation: float or T, for
// every T of float, BFloat16 and Float16. Both functions throw std::bad_alloc
// when there is no memory for a few rows of scratch.
template <typename T, typename M>
void LayerNormModulateFwd(const LayerNormModulateShape& shape, float eps,
                          const T* x, const M* scale, const M* shift, T* y,
                          float* mean, float* rstd);

template <typename T, typename M>
void LayerNormModulateBwd(const LayerNormModulateShape& shape, const T* x,
                          const M* scale, const float* mean, const float* rstd,
                          const T* dy, T* dx, M* dscale, M* dshift);

}  // namespace cpu
}  // namespace jaxload

#endif  // JAXLOAD_FFI_LAYER_NORM_MODULATE_H_
