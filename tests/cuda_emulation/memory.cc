// SPDX-License-Identifier: Apache-2.0

#include "memory.h"

#include <algorithm>
#include <string>

#include "scheduler.h"

namespace cuda_emulation {
namespace {

constexpr int kSectorBytes = 32;
constexpr int kSectorsPerLine = 4;
constexpr int kWays = 16;

// Mirrored in emulation.py. [0]: loads, [1]: stores.
struct Traffic {
  int64_t requested_bytes[2];  // Summed over threads.
  int64_t num_requests[2];     // Of warps.
  int64_t l2_bytes[2];         // Of the sectors that requests touch.
  int64_t least_l2_bytes[2];   // If their bytes lay in as few as possible.
  int64_t hbm_bytes[2];
};

struct Buffer {
  std::string name;
  uint64_t begin;
  uint64_t end;
  bool is_writable;
  Traffic traffic;
  // In this launch.
  bool is_stored;
  bool is_loaded_read_only;
};

std::vector<Buffer> buffers;

// A sector as it is sent to the cache.
struct Sector {
  uint64_t address;
  uint64_t buffer;
  bool is_store;
  bool is_last;  // Of its request.
};

uint64_t Pack(const Sector& sector) {
  return sector.address / kSectorBytes << 16 | sector.buffer << 2 |
         uint64_t{sector.is_last} << 1 | uint64_t{sector.is_store};
}

Sector Unpack(uint64_t bits) {
  return {(bits >> 16) * kSectorBytes, (bits >> 2) & 0x3fff, (bits & 1) != 0,
          (bits & 2) != 0};
}

// Writes back, allocates on loads and stores, and replaces what was used
// longest ago. Stores fetch nothing, as if they always filled their sectors.
class Cache {
 public:
  void Resize(int64_t bytes) {
    const int64_t set_bytes = kWays * kSectorsPerLine * kSectorBytes;
    num_sets_ = std::max<int64_t>(1, bytes / set_bytes);
    lines_.assign(num_sets_ * kWays, Line());
  }

  void Access(const Sector& sector) {
    const uint64_t number = sector.address / kSectorBytes;
    const uint64_t tag = number / kSectorsPerLine;
    const uint32_t bit = 1u << number % kSectorsPerLine;
    // Multiplied, so that arrays of some power of two apart share no set.
    const uint64_t hash = tag * 0x9e3779b97f4a7c15 >> 32;
    Line* set = &lines_[(hash * num_sets_ >> 32) * kWays];
    Line* line = std::find_if(set, set + kWays - 1, [tag](const Line& other) {
      return other.tag == tag;
    });
    if (line->tag != tag) {
      Evict(*line);
      line->tag = tag;
      line->buffer = static_cast<uint32_t>(sector.buffer);
    }
    std::rotate(set, line, line + 1);  // The most recent is the first.
    if (!sector.is_store && (set->valid & bit) == 0) {
      buffers[sector.buffer].traffic.hbm_bytes[0] += kSectorBytes;
    }
    set->valid |= bit;
    if (sector.is_store) set->dirty |= bit;
  }

  void Flush() {
    for (Line& line : lines_) Evict(line);
  }

 private:
  struct Line {
    uint64_t tag = ~uint64_t{0};
    uint32_t buffer = 0;
    uint16_t valid = 0;
    uint16_t dirty = 0;
  };

  void Evict(Line& line) {
    if (line.dirty != 0) {
      buffers[line.buffer].traffic.hbm_bytes[1] +=
          __builtin_popcount(line.dirty) * kSectorBytes;
    }
    line = Line();
  }

  uint64_t num_sets_ = 0;
  std::vector<Line> lines_;
};

Cache cache;

const char* Name(Access access) {
  return access == Access::kStore ? "store" : "load";
}

bool Contains(const Buffer& buffer, uint64_t address) {
  return buffer.begin <= address && address < buffer.end;
}

[[noreturn]] void FailOutside(uint64_t address, int bytes, Access access,
                              SourceLine where) {
  const Buffer* nearest = nullptr;
  uint64_t least = ~uint64_t{0};
  for (const Buffer& buffer : buffers) {
    const uint64_t distance = address < buffer.begin ? buffer.begin - address
                              : address < buffer.end ? 0
                                                     : address - buffer.end;
    if (distance < least) nearest = &buffer;
    least = std::min(least, distance);
  }
  if (nearest == nullptr || least > (1 << 20)) {
    Fail("%s of %d bytes at 0x%llx in %s: not in any buffer", Name(access),
         bytes, static_cast<unsigned long long>(address), Name(where).c_str());
  }
  Fail("%s of %d bytes at byte %lld of %s in %s: out of bounds, it has %lld",
       Name(access), bytes, static_cast<long long>(address - nearest->begin),
       nearest->name.c_str(), Name(where).c_str(),
       static_cast<long long>(nearest->end - nearest->begin));
}

int FindBuffer(uint64_t address, int bytes, Access access, SourceLine where) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (Contains(buffers[i], address)) return static_cast<int>(i);
  }
  FailOutside(address, bytes, access, where);
}

void CheckUse(Buffer& buffer, Access access, SourceLine where) {
  buffer.is_stored |= access == Access::kStore;
  buffer.is_loaded_read_only |= access == Access::kLoadReadOnly;
  if (buffer.is_stored && !buffer.is_writable) {
    Fail("store to %s in %s: it is an input", buffer.name.c_str(),
         Name(where).c_str());
  }
  if (buffer.is_stored && buffer.is_loaded_read_only) {
    Fail("%s of %s in %s: stores to it and __ldg in one launch", Name(access),
         buffer.name.c_str(), Name(where).c_str());
  }
}

}  // namespace

// Out of line, so that the return address tells the instruction.
__attribute__((noinline)) void CheckAccess(const void* pointer, int bytes,
                                           Access access, SourceLine where) {
  const void* instruction = __builtin_return_address(0);
  const auto address = reinterpret_cast<uint64_t>(pointer);
  // An instruction mostly stays in one buffer.
  static uint32_t hints[256];
  uint32_t& hint = hints[reinterpret_cast<uint64_t>(instruction) % 256];
  if (hint >= buffers.size() || !Contains(buffers[hint], address)) {
    hint = FindBuffer(address, bytes, access, where);
  }
  Buffer& buffer = buffers[hint];
  if (address % bytes != 0) {
    Fail("%s of %d bytes at byte %lld of %s in %s: misaligned", Name(access),
         bytes, static_cast<long long>(address - buffer.begin),
         buffer.name.c_str(), Name(where).c_str());
  }
  if (address + bytes > buffer.end) FailOutside(address, bytes, access, where);
  CheckUse(buffer, access, where);
  if (options.counts_traffic) {
    const bool is_store = access == Access::kStore;
    buffer.traffic.requested_bytes[is_store] += bytes;
    AddRequest(instruction, hint, address, bytes, is_store);
  }
}

size_t WarpRequests::Find(int lane, const void* instruction, int buffer,
                          size_t begin, size_t end) const {
  return std::find_if(requests_.begin() + begin, requests_.begin() + end,
                      [=](const Request& request) {
                        return request.instruction == instruction &&
                               request.buffer == buffer &&
                               ((request.lanes >> lane) & 1) == 0;
                      }) -
         requests_.begin();
}

void WarpRequests::Add(int lane, const void* instruction, int buffer,
                       uint64_t address, int bytes, bool is_store) {
  // Most often a lane does what the first one did, in the same order.
  size_t& next = next_[lane];
  size_t i = Find(lane, instruction, buffer, next, requests_.size());
  if (i < requests_.size()) {
    has_skipped_[lane] |= i > next;
    next = i + 1;
  } else if (has_skipped_[lane]) {
    i = Find(lane, instruction, buffer, 0, next);
    if (i == next) i = requests_.size();
  }
  if (i == requests_.size()) {
    if (next == i) ++next;
    requests_.push_back({instruction, buffer, bytes, is_store, 0, {}});
  }
  requests_[i].lanes |= 1u << lane;
  requests_[i].addresses[lane] = address;
}

void WarpRequests::Finish() {
  for (const Request& request : requests_) {
    uint64_t addresses[kLanes];
    uint64_t* end = addresses;
    for (int lane = 0; lane < kLanes; ++lane) {
      if ((request.lanes >> lane) & 1) *end++ = request.addresses[lane];
    }
    if (!std::is_sorted(addresses, end)) std::sort(addresses, end);
    end = std::unique(addresses, end);
    const int64_t num_bytes = (end - addresses) * request.bytes;
    for (uint64_t* a = addresses; a < end; ++a) *a -= *a % kSectorBytes;
    end = std::unique(addresses, end);
    for (uint64_t* a = addresses; a < end; ++a) {
      stream_.push_back(Pack({*a, static_cast<uint64_t>(request.buffer),
                              request.is_store, a + 1 == end}));
    }
    Traffic& traffic = buffers[request.buffer].traffic;
    traffic.num_requests[request.is_store] += 1;
    traffic.l2_bytes[request.is_store] += (end - addresses) * kSectorBytes;
    traffic.least_l2_bytes[request.is_store] +=
        (num_bytes + kSectorBytes - 1) / kSectorBytes * kSectorBytes;
  }
  requests_.clear();
  std::fill(next_, next_ + kLanes, 0);
  std::fill(has_skipped_, has_skipped_ + kLanes, false);
}

void ResetMemory() {
  buffers.clear();
  cache.Resize(options.counts_traffic ? options.l2_bytes : 0);
}

void BeginLaunchMemory() {
  for (Buffer& buffer : buffers) {
    buffer.is_stored = false;
    buffer.is_loaded_read_only = false;
  }
}

void PlayStreams(const std::vector<std::vector<uint64_t>>& streams) {
  std::vector<size_t> next(streams.size());
  for (bool is_done = false; !is_done;) {
    is_done = true;
    for (size_t i = 0; i < streams.size(); ++i) {
      for (bool is_last = false; !is_last && next[i] < streams[i].size();) {
        const Sector sector = Unpack(streams[i][next[i]++]);
        cache.Access(sector);
        is_last = sector.is_last;
        is_done = false;
      }
    }
  }
}

// Returns the buffer's number.
CUDA_EMULATION_EXPORT int cuda_emulation_add_buffer(const char* name,
                                                    const void* begin,
                                                    int64_t bytes,
                                                    int is_writable) {
  const auto address = reinterpret_cast<uint64_t>(begin);
  buffers.push_back(
      {name, address, address + bytes, is_writable != 0, {}, false, false});
  return static_cast<int>(buffers.size()) - 1;
}

// Writes back what the cache holds, and empties it.
CUDA_EMULATION_EXPORT void cuda_emulation_flush() { cache.Flush(); }

CUDA_EMULATION_EXPORT void cuda_emulation_traffic(int buffer,
                                                  Traffic* traffic) {
  *traffic = buffers[buffer].traffic;
}

}  // namespace cuda_emulation
