// SPDX-License-Identifier: Apache-2.0
//
// Sets of vector instructions that kernels are compiled for.

#ifndef JAXLOAD_FFI_ISA_H_
#define JAXLOAD_FFI_ISA_H_

namespace jaxload {

enum class Isa {
  kPortable,  // What every machine of the architecture has.
  kAvx2,
  kAvx512,
};

// Whether kernels were compiled for it and this machine has it.
bool Supports(Isa isa);

// The widest one that is supported.
Isa BestIsa();

}  // namespace jaxload

#endif  // JAXLOAD_FFI_ISA_H_
