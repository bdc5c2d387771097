// SPDX-License-Identifier: Apache-2.0
//
// What one thread does of layer_norm_modulate. Each function is compiled once
// for each set of instructions, and gives the same bits with all of them.

#ifndef JAXLOAD_FFI_LAYER_NORM_MODULATE_CPU_ROWS_H_
#define JAXLOAD_FFI_LAYER_NORM_MODULATE_CPU_ROWS_H_

#include <cstdint>

#include "isa.h"
#include "layer_norm_modulate.h"

namespace jaxload::cpu {

// A row is a token of a sample: rows [begin, end) are of all batch * tokens.
template <Isa isa, bool kGated, typename T>
void FwdRows(const LayerNormModulateFwdArguments<T>& arguments, int64_t begin,
             int64_t end);

// The rows must be of one sample. Sets sums, [2 or, gated, 3, width], to their
// sums: dscale, dshift and, gated, dgate.
template <Isa isa, bool kGated, typename T>
void BwdRows(const LayerNormModulateBwdArguments<T>& arguments, int64_t begin,
             int64_t end, float* sums);

// Sets sum, [width], to the sum of rows that are `stride` apart.
template <Isa isa>
void SumRows(const float* rows, int64_t num_rows, int64_t stride, int64_t width,
             float* sum);

}  // namespace jaxload::cpu

#endif  // JAXLOAD_FFI_LAYER_NORM_MODULATE_CPU_ROWS_H_
