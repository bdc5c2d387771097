// SPDX-License-Identifier: Apache-2.0
//
// Stacks, and switches between them that cost a few nanoseconds: no system
// call, and nothing saved but the registers that any call preserves.

#ifndef JAXLOAD_TESTS_CUDA_EMULATION_FIBER_H_
#define JAXLOAD_TESTS_CUDA_EMULATION_FIBER_H_

// Stores where the running stack was left, and goes on where the other was.
extern "C" void cuda_emulation_switch(void** from, void* to);

namespace cuda_emulation {

constexpr int kMaxFibers = 1024;

// Empties a stack; switching to the result calls `entry`, which must not
// return.
void* NewFiber(int number, void (*entry)());

}  // namespace cuda_emulation

#endif  // JAXLOAD_TESTS_CUDA_EMULATION_FIBER_H_
