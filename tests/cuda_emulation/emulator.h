// SPDX-License-Identifier: Apache-2.0
//
// Runs CUDA kernels, compiled as C++, on one thread of the CPU. Every thread of
// a block is a fiber, which runs until it must wait for others; blocks run one
// after the other. What is undefined in CUDA and would pass unseen on a GPU
// ends the launch with an error that says who did what.

#ifndef JAXLOAD_TESTS_CUDA_EMULATION_EMULATOR_H_
#define JAXLOAD_TESTS_CUDA_EMULATION_EMULATOR_H_

#include <cstddef>
#include <cstdint>
#include <string>

#define CUDA_EMULATION_EXPORT extern "C" __attribute__((visibility("default")))

namespace cuda_emulation {

constexpr int kLanes = 32;

// The device and the run, as tests set them. Mirrored in emulation.py.
struct Options {
  // 0: threads, warps and blocks in their natural order. Otherwise in an order
  // drawn from the seed.
  uint64_t seed;
  int64_t l2_bytes;
  int32_t num_sms;
  int32_t threads_per_sm;
  // What the occupancy calculator says; 0: as many as threads_per_sm allows.
  int32_t blocks_per_sm;
  int32_t counts_traffic;
  // The launch with this number, from 0, fails with this error; negative: none.
  int32_t failing_launch;
  int32_t launch_error;
};

extern Options options;

// A line in the sources of a kernel, which may be several files.
struct SourceLine {
  const char* file;
  int line;
};

// As a default argument: the line of the call that leaves it out.
constexpr SourceLine Here(const char* file = __builtin_FILE(),
                          int line = __builtin_LINE()) {
  return {file, line};
}

// Compares the addresses of file names, because a kernel and the headers in it
// are compiled together, with one copy of each name.
inline bool operator==(SourceLine a, SourceLine b) {
  return a.file == b.file && a.line == b.line;
}

// Returns "line 7 of kernels.cu".
std::string Name(SourceLine where);

// What lanes of a warp do together.
enum class Operation : uint32_t {
  kSyncWarp,
  kShuffle,
  kShuffleUp,
  kShuffleDown,
  kShuffleXor,
};

// kLoadReadOnly: through a cache that does not see stores of the same launch.
enum class Access : uint32_t { kLoad, kLoadReadOnly, kStore };

// The calling thread's lane.
int Lane();

// Waits for the other threads of the block.
void Barrier(SourceLine where);

// Waits until every lane of `mask` is at the same operation; returns the value
// that lane `source` came with.
uint64_t Rendezvous(Operation operation, uint32_t mask, int source,
                    uint64_t value, SourceLine where);

// Ends the launch unless the access is aligned and inside a known buffer.
void CheckAccess(const void* address, int bytes, Access access,
                 SourceLine where);

// Ends the launch with an error; `format` is that of printf.
[[noreturn]] void Fail(const char* format, ...)
    __attribute__((format(printf, 1, 2)));

}  // namespace cuda_emulation

#endif  // JAXLOAD_TESTS_CUDA_EMULATION_EMULATOR_H_
