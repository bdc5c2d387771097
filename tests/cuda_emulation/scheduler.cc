// SPDX-License-Identifier: Apache-2.0

#include "scheduler.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "cuda_runtime.h"
#include "emulator.h"
#include "fiber.h"
#include "memory.h"

uint3 threadIdx;

namespace cuda_emulation {

std::string error_text;

namespace {

constexpr int kMaxWarps = kMaxFibers / kLanes;

// The rendezvous that a lane waits in; in two words, since every lane's is
// compared with every other's.
struct Meeting {
  uint64_t bits;
  const char* file;

  Meeting() = default;
  Meeting(Operation operation, uint32_t mask, SourceLine where)
      : bits(uint64_t{mask} << 32 | static_cast<uint32_t>(where.line) << 3 |
             static_cast<uint32_t>(operation)),
        file(where.file) {}

  Operation operation() const { return static_cast<Operation>(bits & 7); }
  uint32_t mask() const { return static_cast<uint32_t>(bits >> 32); }
  SourceLine where() const {
    return {file, static_cast<int>(static_cast<uint32_t>(bits) >> 3)};
  }

  // Returns 0 for the same rendezvous.
  uint64_t Difference(const Meeting& other) const {
    return (bits ^ other.bits) | (reinterpret_cast<uint64_t>(file) ^
                                  reinterpret_cast<uint64_t>(other.file));
  }
};

struct Warp {
  int number;
  // Masks of lanes. One that is alive is in one of the others.
  uint32_t alive;
  uint32_t runnable;
  uint32_t at_barrier;
  uint32_t at_rendezvous;
  // Of the lanes at a rendezvous.
  Meeting meeting[kLanes];
  int source[kLanes];
  uint64_t value[kLanes];
  uint64_t result[kLanes];
  WarpRequests requests;
};

struct Thread {
  void* stack_pointer;
  uint3 index;
  int lane;
  Warp* warp;
};

Thread threads[kMaxFibers];
Warp warps[kMaxWarps];
Thread* current;
void* host_stack_pointer;
void (*run_thread)(void*);
void* run_context;
uint64_t random_state;

int num_threads;
int num_warps;
int num_alive;
int num_at_barrier;
SourceLine barrier;
uint32_t runnable_warps;
bool failed;

uint32_t FirstBits(int count) { return count >= 32 ? ~0u : (1u << count) - 1; }

bool Has(uint32_t mask, int bit) { return ((mask >> bit) & 1) != 0; }

int LowestBit(uint32_t mask) { return __builtin_ctz(mask); }

int RandomBit(uint32_t mask) {
  const uint32_t later = mask & (~0u << Random(kLanes));
  return LowestBit(later != 0 ? later : mask);
}

const char* Name(Operation operation) {
  switch (operation) {
    case Operation::kSyncWarp:
      return "__syncwarp";
    case Operation::kShuffle:
      return "__shfl_sync";
    case Operation::kShuffleUp:
      return "__shfl_up_sync";
    case Operation::kShuffleDown:
      return "__shfl_down_sync";
    case Operation::kShuffleXor:
      return "__shfl_xor_sync";
  }
  return "";
}

std::string Name(const Meeting& meeting) {
  char text[64];
  std::snprintf(text, sizeof(text), "%s(0x%08x) in ", Name(meeting.operation()),
                meeting.mask());
  return text + Name(meeting.where());
}

// No thread can go on, so some wait in a rendezvous: a barrier alone would have
// let them go. Says whom the first one waits for, and where that is.
[[noreturn]] void FailDeadlock() {
  const Warp* warp = warps;
  while (warp->at_rendezvous == 0) ++warp;
  const int lane = LowestBit(warp->at_rendezvous);
  const Meeting& meeting = warp->meeting[lane];
  uint32_t missing = meeting.mask();
  for (int other = 0; other < kLanes; ++other) {
    if (Has(warp->at_rendezvous, other) &&
        warp->meeting[other].Difference(meeting) == 0) {
      missing &= ~(1u << other);
    }
  }
  const int other = LowestBit(missing);
  std::string where = "has returned";
  if (Has(warp->at_rendezvous, other)) {
    where = "is at " + Name(warp->meeting[other]);
  } else if (Has(warp->at_barrier, other)) {
    where = "is at __syncthreads in " + Name(barrier);
  } else if (warp->number * kLanes + other >= num_threads) {
    where = "does not exist";
  }
  current = &threads[warp->number * kLanes + lane];
  Fail("divergent %s: lane %d waits for lane %d, which %s",
       Name(meeting).c_str(), lane, other, where.c_str());
}

Thread* NextThread() {
  if (runnable_warps == 0) FailDeadlock();
  Warp* warp = current->warp;
  if (options.seed == 0) {
    if (warp->runnable == 0) warp = &warps[LowestBit(runnable_warps)];
    return &threads[warp->number * kLanes + LowestBit(warp->runnable)];
  }
  // Mostly the same warp again, so that some warps get far ahead of others.
  if (warp->runnable == 0 || Random(16) == 0) {
    warp = &warps[RandomBit(runnable_warps)];
  }
  return &threads[warp->number * kLanes + RandomBit(warp->runnable)];
}

void SwitchTo(Thread* next) {
  if (next == current) return;
  Thread* self = current;
  current = next;
  threadIdx = next->index;
  cuda_emulation_switch(&self->stack_pointer, next->stack_pointer);
}

// The running thread cannot go on; another has to.
void Suspend() {
  Warp& warp = *current->warp;
  warp.runnable &= ~(1u << current->lane);
  if (warp.runnable == 0) runnable_warps &= ~(1u << warp.number);
}

void ReleaseBarrier() {
  num_at_barrier = 0;
  runnable_warps = 0;
  for (Warp* warp = warps; warp < warps + num_warps; ++warp) {
    warp->at_barrier = 0;
    warp->runnable = warp->alive;
    if (warp->alive != 0) runnable_warps |= 1u << warp->number;
    if (options.counts_traffic) warp->requests.Finish();
  }
}

// Lets the lanes of the meeting go if they are all there; their results are
// handed out at once, since one may bring its next value before another wakes.
bool CompleteRendezvous(Warp& warp, const Meeting& meeting) {
  const uint32_t mask = meeting.mask();
  uint64_t difference = 0;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = LowestBit(rest);
    difference |= warp.meeting[lane].Difference(meeting);
    warp.result[lane] = warp.value[warp.source[lane]];
  }
  if (difference != 0) return false;
  warp.at_rendezvous &= ~mask;
  warp.runnable |= mask;
  if (options.counts_traffic && mask == warp.alive) {
    warp.requests.Finish();
  }
  return true;
}

void Exit() {
  Warp& warp = *current->warp;
  Suspend();
  warp.alive &= ~(1u << current->lane);
  --num_alive;
  if (warp.alive == 0 && options.counts_traffic) warp.requests.Finish();
  // A barrier waits only for threads that have not returned.
  if (num_at_barrier > 0 && num_at_barrier == num_alive) ReleaseBarrier();
  if (num_alive > 0) {
    SwitchTo(NextThread());
  } else {
    cuda_emulation_switch(&current->stack_pointer, host_stack_pointer);
  }
}

// Of a fiber: the same thread of one block after the other.
void RunThreads() {
  for (;;) {
    run_thread(run_context);
    Exit();
  }
}

}  // namespace

uint32_t Random(uint32_t limit) {  // Marsaglia's xorshift, times a constant.
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return (random_state * 0x2545f4914f6cdd1d >> 32) * limit >> 32;
}

int Lane() { return current->lane; }

std::string Name(SourceLine where) {
  const char* slash = std::strrchr(where.file, '/');
  return "line " + std::to_string(where.line) + " of " +
         (slash != nullptr ? slash + 1 : where.file);
}

void Barrier(SourceLine where) {
  if (num_at_barrier > 0 && !(where == barrier)) {
    Fail("divergent __syncthreads in %s: others are at that in %s",
         Name(where).c_str(), Name(barrier).c_str());
  }
  barrier = where;
  current->warp->at_barrier |= 1u << current->lane;
  if (++num_at_barrier == num_alive) {
    ReleaseBarrier();
    if (options.seed == 0) return;
  } else {
    Suspend();
  }
  SwitchTo(NextThread());
}

uint64_t Rendezvous(Operation operation, uint32_t mask, int source,
                    uint64_t value, SourceLine where) {
  const int lane = current->lane;
  Warp& warp = *current->warp;
  const Meeting meeting(operation, mask, where);
  if (!Has(mask, lane)) {
    Fail("%s: lane %d is not in the mask", Name(meeting).c_str(), lane);
  }
  if (!Has(mask, source)) {
    Fail("%s: lane %d reads lane %d, which is not in the mask",
         Name(meeting).c_str(), lane, source);
  }
  warp.meeting[lane] = meeting;
  warp.source[lane] = source;
  warp.value[lane] = value;
  warp.at_rendezvous |= 1u << lane;
  if ((warp.at_rendezvous & mask) == mask &&
      CompleteRendezvous(warp, meeting)) {
    if (options.seed == 0) return warp.result[lane];
  } else {
    Suspend();
  }
  SwitchTo(NextThread());
  return warp.result[lane];
}

void Fail(const char* format, ...) {
  if (error_text.empty()) {
    char text[512];
    const int prefix = std::snprintf(
        text, sizeof(text),
        "block (%u, %u, %u), thread (%u, %u, %u): ", blockIdx.x, blockIdx.y,
        blockIdx.z, current->index.x, current->index.y, current->index.z);
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text + prefix, sizeof(text) - prefix, format, arguments);
    va_end(arguments);
    error_text = text;
  }
  failed = true;
  // For good; this stack is emptied by the next launch.
  cuda_emulation_switch(&current->stack_pointer, host_stack_pointer);
  __builtin_unreachable();
}

void BeginLaunch(dim3 block, uint64_t seed, void (*thread)(void* context),
                 void* context) {
  run_thread = thread;
  run_context = context;
  random_state = (seed + 1) * 0x9e3779b97f4a7c15;
  failed = false;
  num_threads = static_cast<int>(block.x * block.y * block.z);
  num_warps = (num_threads + kLanes - 1) / kLanes;
  for (int w = 0; w < num_warps; ++w) {
    warps[w].number = w;
    warps[w].requests = WarpRequests();
  }
  for (uint32_t t = 0; t < static_cast<uint32_t>(num_threads); ++t) {
    threads[t].stack_pointer = NewFiber(t, &RunThreads);
    threads[t].index = {t % block.x, t / block.x % block.y,
                        t / block.x / block.y};
    threads[t].lane = t % kLanes;
    threads[t].warp = &warps[t / kLanes];
  }
}

bool RunBlock() {
  num_alive = num_threads;
  num_at_barrier = 0;
  runnable_warps = FirstBits(num_warps);
  for (int w = 0; w < num_warps; ++w) {
    warps[w].alive = FirstBits(std::min(kLanes, num_threads - w * kLanes));
    warps[w].runnable = warps[w].alive;
    warps[w].at_barrier = 0;
    warps[w].at_rendezvous = 0;
  }
  current = &threads[0];
  current = NextThread();
  threadIdx = current->index;
  cuda_emulation_switch(&host_stack_pointer, current->stack_pointer);
  return !failed;
}

void TakeStreams(std::vector<std::vector<uint64_t>>& streams) {
  for (int w = 0; w < num_warps; ++w) {
    streams.push_back(warps[w].requests.TakeStream());
  }
}

void AddRequest(const void* instruction, int buffer, uint64_t address,
                int bytes, bool is_store) {
  current->warp->requests.Add(current->lane, instruction, buffer, address,
                              bytes, is_store);
}

}  // namespace cuda_emulation
