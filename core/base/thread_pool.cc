#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <climits>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "base/cpu_share.h"
#include "base/error.h"
#include "base/forks.h"
#include "base/futex.h"
#include "base/mutex.h"

namespace monolith {
namespace {

using Clock = std::chrono::steady_clock;

// How long an idle worker polls for more work before it sleeps: a training step makes several calls in a row, and
// waking a thread costs about as much as this.
constexpr std::chrono::microseconds kWorkerSpin{30};
// How long a caller polls for the last tasks of other threads. Longer, since its user waits as well.
constexpr std::chrono::microseconds kCallerSpin{100};

constexpr size_t kApart = 64;  // bytes between words that several threads write

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// The tasks of one call. A Job belongs to the pool and outlives the call, so a worker that was delayed between reading
// the job and taking a task gets either a task of the call that uses the job by then, or none; no thread has to wait
// for the worker.
class alignas(kApart) Job {
 public:
  // REQUIRES: the last call has ended, so that no other thread uses `error_`.
  void Open(internal::TaskFunction function, void* context, int num_tasks, int helpers) NO_THREAD_SAFETY_ANALYSIS {
    function_ = function;
    context_ = context;
    num_tasks_ = num_tasks;
    error_ = nullptr;
    to_wake_.store(helpers, std::memory_order_relaxed);
    undone_.store(static_cast<uint32_t>(num_tasks), std::memory_order_relaxed);
    untaken_.store(num_tasks, std::memory_order_release);
  }

  // Takes a task of the current call, whichever it is: no member changes before RunTaken() has returned.
  bool Take(int* task) {
    if (untaken_.load(std::memory_order_relaxed) <= 0) return false;
    const int before = untaken_.fetch_sub(1, std::memory_order_acquire);
    if (before <= 0) return false;
    *task = num_tasks_ - before;
    return true;
  }

  void RunTaken(int task) {
    try {
      function_(context_, task);
    } catch (...) {
      MutexLock lock(error_mutex_);
      if (!error_) error_ = std::current_exception();
    }
    // After the last task the call may have ended and another may use the job: only the address of the word is used
    // then.
    if (undone_.fetch_sub(1, std::memory_order_acq_rel) == (kCallerSleeps | 1u)) FutexWake(&undone_, 1);
  }

  // Takes at most `count` of the helpers that are still to be woken.
  int TakeWakes(int count) {
    if (to_wake_.load(std::memory_order_relaxed) <= 0) return 0;
    return std::clamp(to_wake_.fetch_sub(count, std::memory_order_relaxed), 0, count);
  }

  // Returns the first error of a task: all have ended, so no other thread uses it. REQUIRES: no task is left to take.
  std::exception_ptr WaitUntilDone(bool may_spin) NO_THREAD_SAFETY_ANALYSIS {
    const auto until = Clock::now() + kCallerSpin;
    for (int tries = 0; may_spin && !IsDone() && Clock::now() < until; ++tries) {
      // The thread with the last task may be waiting for this processor.
      tries < 64 ? Pause() : std::this_thread::yield();
    }
    if (!IsDone()) {
      uint32_t undone = undone_.fetch_or(kCallerSleeps, std::memory_order_acq_rel) | kCallerSleeps;
      for (; undone != kCallerSleeps; undone = undone_.load(std::memory_order_acquire)) FutexWait(&undone_, undone);
    }
    return std::move(error_);
  }

 private:
  static constexpr uint32_t kCallerSleeps = 1u << 31;

  bool IsDone() const { return undone_.load(std::memory_order_acquire) == 0; }

  internal::TaskFunction function_ = nullptr;
  void* context_ = nullptr;
  int num_tasks_ = 0;
  Mutex error_mutex_;
  std::exception_ptr error_ GUARDED_BY(error_mutex_);
  std::atomic<int> to_wake_{0};
  alignas(kApart) std::atomic<int> untaken_{0};      // negative after attempts to take a task when none was left
  alignas(kApart) std::atomic<uint32_t> undone_{0};  // and kCallerSleeps
};

class Pool {
 public:
  explicit Pool(int num_threads) : num_cpus_(CpuShareOfThisProcess().cpus) { Resize(num_threads); }

  int num_threads() const { return num_threads_.load(std::memory_order_relaxed); }

  // Calls may be in flight: surplus workers end after their current task. Not from several threads concurrently.
  void Resize(int num_threads) {
    num_threads_.store(num_threads, std::memory_order_seq_cst);
    may_spin_.store(num_threads <= num_cpus_, std::memory_order_relaxed);
    calls_.fetch_add(1, std::memory_order_seq_cst);
    FutexWake(&calls_, INT_MAX);
    for (; static_cast<int>(workers_.size()) >= num_threads && !workers_.empty(); workers_.pop_back()) {
      workers_.back().join();
    }
    while (static_cast<int>(workers_.size()) < num_threads - 1) {
      const int number = static_cast<int>(workers_.size()) + 1;
      workers_.emplace_back([this, number] { Work(number); });
    }
  }

  // Returns false when too many calls are in flight for another one.
  bool Run(int num_tasks, int max_threads, internal::TaskFunction function, void* context) {
    const int place = TakePlace();
    if (place < 0) return false;
    Job& job = jobs_[place];
    const uint64_t bit = uint64_t{1} << place;
    const int helpers = std::min({max_threads, num_tasks, num_threads()}) - 1;
    job.Open(function, context, num_tasks, helpers - spinning_.load(std::memory_order_relaxed));
    open_.fetch_or(bit, std::memory_order_release);
    calls_.fetch_add(1, std::memory_order_seq_cst);
    WakeTwo(job);
    for (int task; job.Take(&task);) job.RunTaken(task);
    open_.fetch_and(~bit, std::memory_order_relaxed);
    const std::exception_ptr error = job.WaitUntilDone(may_spin_.load(std::memory_order_relaxed));
    used_.fetch_and(~bit, std::memory_order_release);
    if (error) std::rethrow_exception(error);
    return true;
  }

 private:
  int TakePlace() {
    uint64_t used = used_.load(std::memory_order_relaxed);
    while (~used != 0) {
      const int place = std::countr_one(used);
      if (used_.compare_exchange_weak(used, used | uint64_t{1} << place, std::memory_order_acquire,
                                      std::memory_order_relaxed)) {
        return place;
      }
    }
    return -1;
  }

  void Work(int number) {
    int place = number;
    bool was_asleep = false;
    for (;;) {
      // In this order: Resize() lowers the number before it changes the word, so a worker that still sees the old
      // number has not seen that change, and does not sleep through it.
      const uint32_t seen = calls_.load(std::memory_order_seq_cst);
      if (number >= num_threads_.load(std::memory_order_seq_cst)) return;
      if (Help(&place, was_asleep)) {
        was_asleep = false;
      } else {
        was_asleep = !SeesCallSoon(seen) && Sleep(seen);
      }
    }
  }

  // Runs one task of the next open call after the one at *place, round-robin: concurrent calls share the workers task
  // by task. Returns false when there is none.
  bool Help(int* place, bool was_asleep) {
    const int shift = (*place + 1) % kMaxCalls;
    for (uint64_t open = std::rotr(open_.load(std::memory_order_acquire), shift); open != 0; open &= open - 1) {
      const int next = (std::countr_zero(open) + shift) % kMaxCalls;
      Job& job = jobs_[next];
      int task;
      if (!job.Take(&task)) continue;
      if (was_asleep) WakeTwo(job);
      job.RunTaken(task);
      *place = next;
      return true;
    }
    return false;
  }

  // Each of the two wakes two more, if they are useful: so the caller soon starts its own work.
  void WakeTwo(Job& job) {
    if (asleep_.load(std::memory_order_seq_cst) == 0) return;
    if (const int count = job.TakeWakes(2); count > 0) FutexWake(&calls_, count);
  }

  bool SeesCallSoon(uint32_t seen) {
    if (!may_spin_.load(std::memory_order_relaxed)) return false;
    spinning_.fetch_add(1, std::memory_order_relaxed);
    const auto until = Clock::now() + kWorkerSpin;
    bool sees = false;
    while (!(sees = calls_.load(std::memory_order_relaxed) != seen) && Clock::now() < until) Pause();
    spinning_.fetch_sub(1, std::memory_order_relaxed);
    return sees;
  }

  // Sleeps until there is another call than those `seen`; may return early. A call that starts now either sees that a
  // worker sleeps, or changes the word before the kernel checks it.
  bool Sleep(uint32_t seen) {
    asleep_.fetch_add(1, std::memory_order_seq_cst);
    FutexWait(&calls_, seen);
    asleep_.fetch_sub(1, std::memory_order_relaxed);
    return true;
  }

  static constexpr int kMaxCalls = 64;

  const int num_cpus_;
  std::atomic<int> num_threads_{1};
  std::atomic<bool> may_spin_{true};  // false with more threads than processors: another thread could use this one
  std::vector<std::thread> workers_;
  Job jobs_[kMaxCalls];
  alignas(kApart) std::atomic<uint64_t> used_{0};   // jobs of calls in flight, by bit
  alignas(kApart) std::atomic<uint64_t> open_{0};   // jobs that may have tasks to take
  alignas(kApart) std::atomic<uint32_t> calls_{0};  // changes with every call; workers sleep on it
  alignas(kApart) std::atomic<int> asleep_{0};
  std::atomic<int> spinning_{0};
};

thread_local bool is_alone = false;  // see AloneScope

Mutex pool_mutex;                  // held by the thread that makes or resizes the pool
std::atomic<Pool*> pool{nullptr};  // leaked at exit: other threads may still be inside a call

// The workers do not exist in a child: it makes a new pool and leaks the old one.
class PoolInForks final : AtRestInForks {
 public:
  PoolInForks() : AtRestInForks(Kind::kMemory) {}

 private:
  void Rest() override ACQUIRE(pool_mutex) { pool_mutex.Lock(); }
  void GoOnInParent() override RELEASE(pool_mutex) { pool_mutex.Unlock(); }
  void GoOnInChild() override RELEASE(pool_mutex) {
    pool.store(nullptr, std::memory_order_relaxed);
    pool_mutex.Unlock();
  }
};
// Created when the library is loaded, because calls that a fork waits for use the pool; leaked like it.
[[maybe_unused]] const auto* const pool_in_forks = new PoolInForks;

Pool& CurrentPool() {
  Pool* current = pool.load(std::memory_order_acquire);
  if (current != nullptr) return *current;
  MutexLock lock(pool_mutex);
  if (pool.load(std::memory_order_relaxed) == nullptr) {
    pool.store(new Pool(CpuShareOfThisProcess().cpus), std::memory_order_release);
  }
  return *pool.load(std::memory_order_relaxed);
}

void RunAlone(int num_tasks, internal::TaskFunction function, void* context) {
  std::exception_ptr error;
  for (int task = 0; task < num_tasks; ++task) {
    try {
      function(context, task);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace

int NumThreads() { return CurrentPool().num_threads(); }

void SetNumThreads(int count) {
  if (count < 1) throw Error(Code::kInvalidArgument, "number of threads must be >= 1, got " + std::to_string(count));
  Pool& current = CurrentPool();
  MutexLock lock(pool_mutex);
  if (current.num_threads() != count) current.Resize(count);
}

AloneScope::AloneScope(bool alone) : before_(is_alone) { is_alone = before_ || alone; }
AloneScope::~AloneScope() { is_alone = before_; }

namespace internal {

void RunParallel(int num_tasks, int max_threads, TaskFunction function, void* context) {
  if (num_tasks > 1 && !is_alone) {
    Pool& current = CurrentPool();
    if (current.num_threads() > 1 && current.Run(num_tasks, max_threads, function, context)) return;
  }
  RunAlone(num_tasks, function, context);
}

}  // namespace internal
}  // namespace monolith
