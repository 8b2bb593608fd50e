// The threads that share the core's batch work. One pool per process, created at first use, thread-safe, and recreated
// in a forked child. Results never depend on the number of threads: callers split work so that they cannot.
//
// Work is split into tasks, more of them than there are threads, and every idle thread takes the next one. The calling
// thread takes tasks like the others, so a call never waits for a thread that the system delays, only for tasks that
// others have started. Concurrent calls share the workers task by task. Idle workers poll for the next call for some
// microseconds and then sleep; with more threads than processors they sleep immediately.
#pragma once

#include <cstdint>
#include <type_traits>

namespace monolith {

// Threads a batch call may use, the caller's included. Default: the processors this process may use (cpu_share.h).
int NumThreads();
// Calls in flight continue with the existing threads. Not from inside a task. Throws kInvalidArgument unless count >=
// 1.
void SetNumThreads(int count);

// During its lifetime, batch calls of this thread use no other thread: for one of many threads that all make calls.
class AloneScope {
 public:
  explicit AloneScope(bool alone);
  ~AloneScope();
  AloneScope(const AloneScope&) = delete;
  AloneScope& operator=(const AloneScope&) = delete;

 private:
  const bool before_;
};

namespace internal {
using TaskFunction = void (*)(void* context, int task);
void RunParallel(int num_tasks, int max_threads, TaskFunction function, void* context);
}  // namespace internal

// Runs body(task) for every task in [0, num_tasks), on the pool and on the calling thread, and returns when all are
// done. Wakes at most `max_threads` - 1 threads; those that are awake may help all the same. The first exception of a
// task is thrown here after the others have finished.
template <typename Body>
void ParallelFor(int num_tasks, int max_threads, Body&& body) {
  using Callable = std::remove_reference_t<Body>;
  internal::RunParallel(
      num_tasks, max_threads, [](void* context, int task) { (*static_cast<Callable*>(context))(task); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

template <typename Body>
void ParallelFor(int num_tasks, Body&& body) {
  ParallelFor(num_tasks, num_tasks, body);
}

}  // namespace monolith
