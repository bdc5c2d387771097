// SPDX-License-Identifier: Apache-2.0
//
// y = layer_norm(x) * (1 + scale) + shift, and its gradients. The gated form
// normalizes residual = x + gate * h, rounded to the type of x, and returns
// the residual too.

#ifndef JAXLOAD_FFI_LAYER_NORM_MODULATE_H_
#define JAXLOAD_FFI_LAYER_NORM_MODULATE_H_

#include <cstdint>

namespace jaxload {

// Bits of a 16-bit float in memory; all arithmetic is in float.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

// Activations (x, h, residual, y and their gradients) are [batch, tokens,
// width]; modulations (gate, scale, shift and their gradients) are [batch,
// width]; mean and rstd are [batch, tokens]. All are row-major. Any size may be
// zero, and the pointer of an empty array may be null.
struct LayerNormModulateShape {
  int64_t batch;
  int64_t tokens;
  int64_t width;
};

// T, the type of the activations, is float, BFloat16 or Float16. Modulations
// and statistics are float for every T.
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
  // Used by the gated form only; otherwise null.
  const T* h;
  const float* gate;
  T* residual;
};

// The backward pass reads x again, and the gated form recomputes the residual
// from x, gate and h, so that only mean and rstd have to be saved.
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
  // Partial sums over tokens, [batch, num_runs, num_sums, width]; num_sums is 3
  // if gated, else 2. The tokens of a sample are divided into at most num_runs
  // runs, each with its own sums. The sums of all runs are added in order, so
  // that results are deterministic.
  float* workspace;
  int64_t num_runs;
  // Used by the gated form only; otherwise null.
  const T* h;
  const float* gate;
  const T* dresidual;
  T* dh;
  float* dgate;
};

}  // namespace jaxload

#endif  // JAXLOAD_FFI_LAYER_NORM_MODULATE_H_
