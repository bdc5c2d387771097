// SPDX-License-Identifier: Apache-2.0
//
// Instruction sets that kernels are compiled for.

#ifndef JAXLOAD_FFI_ISA_H_
#define JAXLOAD_FFI_ISA_H_

namespace jaxload {

enum class Isa {
  kPortable,  // Instructions that every CPU of the architecture has.
  kAvx2,
  kAvx512,
};

// Returns true if kernels were compiled for `isa` and this machine supports it.
bool Supports(Isa isa);

// Returns the supported instruction set with the widest vectors.
Isa BestIsa();

}  // namespace jaxload

#endif  // JAXLOAD_FFI_ISA_H_
