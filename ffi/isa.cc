// SPDX-License-Identifier: Apache-2.0

#include "isa.h"

#include <initializer_list>

namespace jaxload {

bool Supports(Isa isa) {
#ifdef __x86_64__
  if (isa == Isa::kAvx2) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  }
  if (isa == Isa::kAvx512) {
    return Supports(Isa::kAvx2) && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw");
  }
#endif
  return isa == Isa::kPortable;
}

Isa BestIsa() {
  for (const Isa isa : {Isa::kAvx512, Isa::kAvx2}) {
    if (Supports(isa)) return isa;
  }
  return Isa::kPortable;
}

}  // namespace jaxload
