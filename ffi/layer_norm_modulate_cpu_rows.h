// SPDX-License-Identifier: Apache-2.0
//
// Parts of layer_norm_modulate that run on one thread. Each function is
// compiled once for each instruction set; results are equal bit for bit.

#ifndef JAXLOAD_FFI_LAYER_NORM_MODULATE_CPU_ROWS_H_
#define JAXLOAD_FFI_LAYER_NORM_MODULATE_CPU_ROWS_H_

#include <cstdint>

#include "isa.h"
#include "layer_norm_modulate.h"

namespace jaxload::cpu {

// Forward pass of rows [begin, end) of batch * tokens; a row is one token.
template <Isa isa, bool kGated, typename T>
void FwdRows(const LayerNormModulateFwdArguments<T>& arguments, int64_t begin,
             int64_t end);

// Backward pass of rows [begin, end), all of one sample. Sets `sums` to dscale,
// dshift and, if gated, dgate, each [width] and summed over these rows.
template <Isa isa, bool kGated, typename T>
void BwdRows(const LayerNormModulateBwdArguments<T>& arguments, int64_t begin,
             int64_t end, float* sums);

// Sets `sum`, [width], to the sum of rows that are `stride` elements apart.
template <Isa isa>
void SumRows(const float* rows, int64_t num_rows, int64_t stride, int64_t width,
             float* sum);

}  // namespace jaxload::cpu

#endif  // JAXLOAD_FFI_LAYER_NORM_MODULATE_CPU_ROWS_H_
