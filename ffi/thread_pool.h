// SPDX-License-Identifier: Apache-2.0
//
// Parallel loops on the thread pool of a kernel's caller.

#ifndef JAXLOAD_FFI_THREAD_POOL_H_
#define JAXLOAD_FFI_THREAD_POOL_H_

#include <cstdint>
#include <functional>

namespace jaxload {

// Threads that a kernel may use during a call.
class ThreadPool {
 public:
  virtual ~ThreadPool() = default;
  virtual int64_t num_threads() const = 0;
  // Runs the task at any later time, even after the kernel has returned. May
  // throw only std::bad_alloc; the task is then never run.
  virtual void Schedule(std::function<void()> task) = 0;
};

// Calls run(i) once for each i in [0, num_items), in any order, on the calling
// thread and on at most `max_threads` - 1 threads of the pool. Returns when all
// calls have returned. `run` is called in the caller's floating-point
// environment, and must not throw.
//
// The caller may be a thread of the pool, and all other threads may be busy.
// The calling thread runs items like the others, and waits only for items that
// another thread has begun, so that tasks that cannot be scheduled do no harm.
//
// Throws std::bad_alloc, but only before the first call of `run`.
void ParallelFor(ThreadPool& pool, int64_t max_threads, int64_t num_items,
                 const std::function<void(int64_t)>& run);

}  // namespace jaxload

#endif  // JAXLOAD_FFI_THREAD_POOL_H_
