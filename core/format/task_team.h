// A few threads that share numbered tasks: one file or one bucket each. Made for one Run(); the caller works too.
//
// Plain threads instead of the core's pool, because these tasks wait for disks and must not hold back lookups.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>

namespace monolith {

// How far a save or restore is, and the wish to stop it. Any thread may read and cancel at any time.
struct TransferProgress {
  std::atomic<uint64_t> bytes{0};
  std::atomic<uint64_t> blocks{0};
  std::atomic<bool> cancelled{false};
};

class TaskTeam {
 public:
  using Task = std::function<void(size_t task, size_t worker)>;  // workers are numbered from 0

  // `progress` stays the caller's.
  explicit TaskTeam(const TransferProgress& progress) : progress_(progress) {}

  // How many workers Run() will use.
  static size_t Size(size_t tasks, int threads);

  // Does tasks 0..tasks-1, each once. The first error stops the handing out and is rethrown when all workers have
  // ended.
  void Run(size_t tasks, int threads, const Task& task);

  // To be called now and then inside long tasks: ends them, by Error(kFailedPrecondition), soon after the caller
  // cancelled or another task failed.
  void ThrowIfStopped() const;

 private:
  void Work(size_t tasks, size_t worker, const Task& task);

  const TransferProgress& progress_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr error_;  // guarded by mutex_ while workers run
};

}  // namespace monolith
