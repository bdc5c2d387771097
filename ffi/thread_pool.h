// SPDX-License-Identifier: Apache-2.0
//
// Loops over the threads of whoever calls a kernel.

#ifndef JAXLOAD_FFI_THREAD_POOL_H_
#define JAXLOAD_FFI_THREAD_POOL_H_

#include <cstdint>
#include <functional>

namespace jaxload {

// Threads that a kernel may use for the length of a call.
class ThreadPool {
 public:
  virtual ~ThreadPool() = default;
  virtual int64_t num_threads() const = 0;
  // Runs the task at some time, perhaps only after the kernel has returned. If
  // it throws, which must be std::bad_alloc, the task is never run.
  virtual void Schedule(std::function<void()> task) = 0;
};

// Calls run(i) once for each i in [0, num_items), in any order, on the calling
// thread and on at most `max_threads` - 1 of the pool, and returns when all
// calls have. They run in the floating-point environment of the caller, and
// must not throw.
//
// The caller may itself be a thread of the pool, and all others may be busy: it
// takes items like any other thread, and waits only for those that another has
// begun. Hence a task that cannot be scheduled is done without.
//
// Throws std::bad_alloc, but only before the first call.
void ParallelFor(ThreadPool& pool, int64_t max_threads, int64_t num_items,
                 const std::function<void(int64_t)>& run);

}  // namespace jaxload

#endif  // JAXLOAD_FFI_THREAD_POOL_H_
