// SPDX-License-Identifier: Apache-2.0

#ifndef JAXLOAD_FFI_LAYER_NORM_MODULATE_CPU_H_
#define JAXLOAD_FFI_LAYER_NORM_MODULATE_CPU_H_

#include "isa.h"
#include "layer_norm_modulate.h"
#include "thread_pool.h"

namespace jaxload::cpu {

// Both functions return when all results are complete. For every instruction
// set and number of threads, results are equal bit for bit, except in NaNs.

template <bool kGated, typename T>
void LayerNormModulateFwd(Isa isa, ThreadPool& pool,
                          const LayerNormModulateFwdArguments<T>& arguments);

template <bool kGated, typename T>
void LayerNormModulateBwd(Isa isa, ThreadPool& pool,
                          const LayerNormModulateBwdArguments<T>& arguments);

}  // namespace jaxload::cpu

#endif  // JAXLOAD_FFI_LAYER_NORM_MODULATE_CPU_H_
