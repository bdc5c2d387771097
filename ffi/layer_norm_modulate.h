// SPDX-License-Identifier: Apache-2.0
//
// y = layer_norm(x) * (1 + scale) + shift, and its gradients. The gated form
// normalizes residual = x + gate * h, rounded to the type of x, and returns
// the residual too.

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

// Activations (x, h, residual, y and their gradients) are [batch, tokens,
// width]; modulations (gate, scale, shift and their gradients) are [batch,
// width]; mean and rstd are [batch, tokens]. All are row-major, and any size
// may be zero, in which case a pointer may be null.
struct LayerNormModulateShape {
  int64_t batch;
  int64_t tokens;
  int64_t width;
};

// T, the type of the activations, is float, BFloat16 or Float16. Modulations
// and statistics are float whatever T is.
template <typename T>
struct LayerNormModulateFwdArguments {
  LayerNormModulateShape shape;
  float eps;
  const T* x;
  const float* scale;
  const float* shift;
  T* y;
  float* mean;
  float* rstd;
  // Of the gated form; null in the other.
  const T* h;
  const float* gate;
  T* residual;
};

// What was normalized is read again, or made again of x, gate and h, so that
// only the two statistics are saved.
template <typename T>
struct LayerNormModulateBwdArguments {
  LayerNormModulateShape shape;
  const T* x;
  const float* scale;
  const float* mean;
  const float* rstd;
  const T* dy;
  T* dx;
  float* dscale;
  float* dshift;
  // [batch, num_runs, 2 or, gated, 3, width]: the tokens of a sample are cut
  // into at most num_runs runs, each of which keeps its own sums over tokens
  // here; they are added in order, so that the result is the same every time.
  float* workspace;
  int64_t num_runs;
  // Of the gated form; null in the other.
  const T* h;
  const float* gate;
  const T* dresidual;
  T* dh;
  float* dgate;
};

}  // namespace jaxload

#endif  // JAXLOAD_FFI_LAYER_NORM_MODULATE_H_
