// SPDX-License-Identifier: Apache-2.0

#include "thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>

namespace jaxload {
namespace {

// State of one call of ParallelFor. A task of the pool may start after
// ParallelFor has returned. No items are left then, so the task does not call
// `run`, which no longer exists.
class Loop {
 public:
  Loop(int64_t num_items, const std::function<void(int64_t)>& run)
      : num_items_(num_items), run_(run) {}

  // Runs items until none are left.
  void Work() {
    int64_t num_done = 0;
    for (int64_t item; (item = next_.fetch_add(1)) < num_items_; ++num_done) {
      run_(item);
    }
    if (num_done == 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    num_done_ += num_done;
    if (num_done_ == num_items_) all_done_.notify_one();
  }

  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    all_done_.wait(lock, [this] { return num_done_ == num_items_; });
  }

 private:
  const int64_t num_items_;
  const std::function<void(int64_t)>& run_;
  std::atomic<int64_t> next_{0};
  std::mutex mutex_;
  std::condition_variable all_done_;
  int64_t num_done_ = 0;
};

}  // namespace

void ParallelFor(ThreadPool& pool, int64_t max_threads, int64_t num_items,
                 const std::function<void(int64_t)>& run) {
  const int64_t num_threads =
      std::min({max_threads, num_items, pool.num_threads()});
  if (num_threads <= 1) {
    for (int64_t item = 0; item < num_items; ++item) run(item);
    return;
  }
  // Copied to all threads, which may differ in whether they flush subnormals.
  std::fenv_t environment;
  std::fegetenv(&environment);
  const auto loop = std::make_shared<Loop>(num_items, run);
  try {
    for (int64_t i = 1; i < num_threads; ++i) {
      pool.Schedule([loop, environment] {
        std::fenv_t own;
        std::fegetenv(&own);
        std::fesetenv(&environment);
        loop->Work();
        std::fesetenv(&own);
      });
    }
  } catch (const std::bad_alloc&) {
    // Not rethrown: a thread may already be calling `run`, which exists only
    // until ParallelFor returns. Fewer threads only take longer.
  }
  loop->Work();
  loop->Wait();
}

}  // namespace jaxload
