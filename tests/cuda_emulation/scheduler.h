// SPDX-License-Identifier: Apache-2.0
//
// The threads of the block that runs: who may go on, and who waits for whom.

#ifndef JAXLOAD_TESTS_CUDA_EMULATION_SCHEDULER_H_
#define JAXLOAD_TESTS_CUDA_EMULATION_SCHEDULER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cuda_runtime_api.h"

namespace cuda_emulation {

// Lays out the threads, seeds the order in which they run, and gives every
// thread a new stack: an earlier launch may have left them in disorder.
void BeginLaunch(dim3 block, uint64_t seed, void (*thread)(void* context),
                 void* context);

// Runs every thread of block `blockIdx` to its end; false if one of them
// failed.
bool RunBlock();

// Appends the sectors that each warp of the last block requested; see memory.h.
void TakeStreams(std::vector<std::vector<uint64_t>>& streams);

// Adds an access of the running thread to the requests of its warp.
void AddRequest(const void* instruction, int buffer, uint64_t address,
                int bytes, bool is_store);

// Uniform below `limit`, from the launch's seed.
uint32_t Random(uint32_t limit);

// The first error since it was last cleared, or nothing.
extern std::string error_text;

}  // namespace cuda_emulation

#endif  // JAXLOAD_TESTS_CUDA_EMULATION_SCHEDULER_H_
