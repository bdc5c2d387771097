// SPDX-License-Identifier: Apache-2.0
//
// Global memory as the emulated device sees it: buffers with names, the
// requests that warps make of them, and the L2 cache in front of them.

#ifndef JAXLOAD_TESTS_CUDA_EMULATION_MEMORY_H_
#define JAXLOAD_TESTS_CUDA_EMULATION_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "emulator.h"

namespace cuda_emulation {

// What a warp requested since its lanes last met. A lane runs ahead of the
// others; its n-th access of an instruction is joined with theirs here.
class WarpRequests {
 public:
  void Add(int lane, const void* instruction, int buffer, uint64_t address,
           int bytes, bool is_store);

  // Counts the requests and appends the sectors that they touch to the stream.
  void Finish();

  // The sectors of all requests that were finished, in the form of PlayStreams.
  std::vector<uint64_t> TakeStream() { return std::exchange(stream_, {}); }

 private:
  struct Request {
    const void* instruction;
    int buffer;
    int bytes;
    bool is_store;
    uint32_t lanes;
    uint64_t addresses[kLanes];
  };

  // The first request in [begin, end) that the lane's access belongs to, or
  // end.
  size_t Find(int lane, const void* instruction, int buffer, size_t begin,
              size_t end) const;

  std::vector<Request> requests_;
  std::vector<uint64_t> stream_;
  // Where a lane's next access is looked for first, and whether there are
  // requests before that which it had no part in.
  size_t next_[kLanes] = {};
  bool has_skipped_[kLanes] = {};
};

// Forgets all buffers and empties the cache, which gets the size of `options`.
void ResetMemory();

// What earlier launches stored may be read through any cache.
void BeginLaunchMemory();

// Sends the sectors of warps that the device would hold at the same time
// through the L2 cache, one request of each warp by turns.
void PlayStreams(const std::vector<std::vector<uint64_t>>& streams);

}  // namespace cuda_emulation

#endif  // JAXLOAD_TESTS_CUDA_EMULATION_MEMORY_H_
