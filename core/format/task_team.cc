#include "format/task_team.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "base/error.h"

namespace monolith {

size_t TaskTeam::Size(size_t tasks, int threads) { return std::min(tasks, static_cast<size_t>(std::max(threads, 1))); }

void TaskTeam::Run(size_t tasks, int threads, const Task& task) {
  std::vector<std::thread> helpers;
  for (size_t worker = 1; worker < Size(tasks, threads); ++worker) {
    helpers.emplace_back([this, tasks, worker, &task] { Work(tasks, worker, task); });
  }
  Work(tasks, 0, task);
  for (std::thread& helper : helpers) helper.join();
  const MutexLock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void TaskTeam::ThrowIfStopped() const {
  if (progress_.cancelled.load(std::memory_order_relaxed) || failed_.load(std::memory_order_relaxed)) {
    throw Error(Code::kFailedPrecondition, "cancelled by the caller");
  }
}

void TaskTeam::Work(size_t tasks, size_t worker, const Task& task) {
  while (!failed_.load(std::memory_order_relaxed)) {
    const size_t next = next_.fetch_add(1, std::memory_order_relaxed);
    if (next >= tasks) return;
    try {
      task(next, worker);
    } catch (...) {
      const MutexLock lock(mutex_);
      if (!error_) error_ = std::current_exception();
      failed_.store(true, std::memory_order_relaxed);
    }
  }
}

}  // namespace monolith
