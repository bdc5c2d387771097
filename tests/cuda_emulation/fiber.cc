// SPDX-License-Identifier: Apache-2.0

#include "fiber.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

// Predicting the returns works out, because fibers switch in the same places.
#if defined(__x86_64__)
asm(R"(
.text
.hidden cuda_emulation_switch
.globl cuda_emulation_switch
.type cuda_emulation_switch, @function
cuda_emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cuda_emulation_switch, .-cuda_emulation_switch
)");
constexpr int kSavedWords = 8;  // One more than is popped: calls misalign by 8.
constexpr int kEntryWord = 6;
#elif defined(__aarch64__)
asm(R"(
.text
.hidden cuda_emulation_switch
.globl cuda_emulation_switch
.type cuda_emulation_switch, %function
cuda_emulation_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size cuda_emulation_switch, .-cuda_emulation_switch
)");
constexpr int kSavedWords = 20;
constexpr int kEntryWord = 11;
#else
#error "expected x86-64 or AArch64"
#endif

namespace cuda_emulation {
namespace {

constexpr size_t kStackBytes = 64 * 1024;
constexpr size_t kGuardBytes = 4 * 1024;

char* MapStacks(int count) {
  void* stacks = mmap(nullptr, count * kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) return nullptr;
  for (int i = 0; i < count; ++i) {
    mprotect(static_cast<char*>(stacks) + i * kStackBytes, kGuardBytes,
             PROT_NONE);
  }
  return static_cast<char*>(stacks);
}

}  // namespace

void* NewFiber(int number, void (*entry)()) {
  static char* const stacks = MapStacks(kMaxFibers);
  if (stacks == nullptr) return nullptr;
  // Staggered, lest all stacks compete for the same few sets of the cache.
  char* top = stacks + (number + 1) * kStackBytes - number % 32 * 320;
  void** words = reinterpret_cast<void**>(top) - kSavedWords;
  std::fill(words, words + kSavedWords, nullptr);
  words[kEntryWord] = reinterpret_cast<void*>(entry);
  return words;
}

}  // namespace cuda_emulation
