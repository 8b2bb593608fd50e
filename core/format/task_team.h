// A few threads that share numbered tasks: one file or one bucket each. Made for one Run(); the caller's thread works
// too.
//
// Plain threads instead of the core's pool, because these tasks wait for disks and must not delay lookups.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>

#include "base/mutex.h"

namespace monolith {

// Progress of a save or restore, and the flag that cancels it. Thread-safe.
struct TransferProgress {
  std::atomic<uint64_t> bytes{0};
  std::atomic<uint64_t> blocks{0};
  std::atomic<bool> cancelled{false};
};

class TaskTeam {
 public:
  using Task = std::function<void(size_t task, size_t worker)>;  // workers are numbered from 0

  // The caller owns `progress`.
  explicit TaskTeam(const TransferProgress& progress) : progress_(progress) {}

  // Returns the number of workers that Run() will use.
  static size_t Size(size_t tasks, int threads);

  // Runs tasks 0..tasks-1, each once. After the first error no further task is started; it is rethrown when all workers
  // have ended.
  void Run(size_t tasks, int threads, const Task& task);

  // To be called periodically inside long tasks: ends them, by Error(kFailedPrecondition), soon after the caller
  // cancelled or another task failed.
  void ThrowIfStopped() const;

 private:
  void Work(size_t tasks, size_t worker, const Task& task);

  const TransferProgress& progress_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
  Mutex mutex_;
  std::exception_ptr error_ GUARDED_BY(mutex_);
};

}  // namespace monolith
