#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/forks.h"

namespace monolith {
namespace {

// How long an idle worker looks for more work before it sleeps: a training step makes several calls in a row, and
// waking a thread costs about as much as this.
constexpr std::chrono::microseconds kSpin{30};

struct Job {
  Job(internal::TaskFunction job_function, void* job_context, int job_tasks, int job_threads)
      : function(job_function),
        context(job_context),
        num_tasks(job_tasks),
        max_threads(std::min(job_threads, job_tasks)) {}

  const internal::TaskFunction function;
  void* const context;
  const int num_tasks;
  const int max_threads;  // to wake, with the caller's
  std::atomic<int> next{0};
  std::atomic<int> helpers{0};  // workers inside this job; the job may be destroyed when it is 0 and it left the queue
  std::mutex error_mutex;
  std::exception_ptr error;

  void Work() {
    for (int task; (task = next.fetch_add(1, std::memory_order_relaxed)) < num_tasks;) {
      try {
        function(context, task);
      } catch (...) {
        std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
      }
    }
  }
};

int CpusOfThisProcess() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

class Pool {
 public:
  explicit Pool(int num_threads) : num_threads_(num_threads) {
    for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this] { WorkUntilStopped(); });
  }

  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  int num_threads() const { return num_threads_; }

  void Run(Job& job) {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(&job);
      pushed_.fetch_add(1, std::memory_order_release);
    }
    // No more than there are tasks for: the others would only wake to find nothing left, and take processors from
    // someone else.
    for (int helpers = std::min(sleeping_.load(std::memory_order_acquire), job.max_threads - 1); helpers > 0; --helpers)
      wake_.notify_one();
    job.Work();
    {
      std::lock_guard lock(mutex_);
      std::erase(queue_, &job);
    }
    while (job.helpers.load(std::memory_order_acquire) != 0) std::this_thread::yield();
  }

 private:
  void WorkUntilStopped() {
    for (;;) {
      Job* job = TakeJob();
      if (job == nullptr) return;
      job->Work();
      job->helpers.fetch_sub(1, std::memory_order_release);
    }
  }

  // A job with tasks left, already counted as helped; null when the pool stops.
  Job* TakeJob() {
    SpinForWork();
    std::unique_lock lock(mutex_);
    for (;;) {
      for (Job* job : queue_) {
        if (job->next.load(std::memory_order_relaxed) < job->num_tasks) {
          job->helpers.fetch_add(1, std::memory_order_relaxed);
          return job;
        }
      }
      if (stopping_) return nullptr;
      sleeping_.fetch_add(1, std::memory_order_release);
      wake_.wait(lock);
      sleeping_.fetch_sub(1, std::memory_order_release);
    }
  }

  void SpinForWork() {
    const uint64_t seen = pushed_.load(std::memory_order_acquire);
    const auto until = std::chrono::steady_clock::now() + kSpin;
    while (pushed_.load(std::memory_order_acquire) == seen && std::chrono::steady_clock::now() < until) {
    }
  }

  const int num_threads_;
  std::atomic<uint64_t> pushed_{0};
  std::atomic<int> sleeping_{0};

  std::mutex mutex_;  // guards the members below
  std::condition_variable wake_;
  std::deque<Job*> queue_;
  bool stopping_ = false;

  std::vector<std::thread> workers_;
};

thread_local bool is_alone = false;  // see AloneScope

std::mutex pool_mutex;  // guards `pool`
Pool* pool = nullptr;   // leaked at exit: other threads may still be inside a call

// The workers do not exist in a child: it starts over and leaves the old pool behind.
class PoolInForks final : AtRestInForks {
 public:
  PoolInForks() : AtRestInForks(Kind::kMemory) {}

 private:
  void Rest() override { pool_mutex.lock(); }
  void GoOnInParent() override { pool_mutex.unlock(); }
  void GoOnInChild() override {
    pool = nullptr;
    pool_mutex.unlock();
  }
};
// Made when the library is loaded, because calls that a fork waits for use the pool; leaked like it.
[[maybe_unused]] const auto* const pool_in_forks = new PoolInForks;

Pool& CurrentPool() {
  std::lock_guard lock(pool_mutex);
  if (pool == nullptr) pool = new Pool(CpusOfThisProcess());
  return *pool;
}

}  // namespace

int NumThreads() { return CurrentPool().num_threads(); }

void SetNumThreads(int count) {
  if (count < 1) throw Error(Code::kInvalidArgument, "number of threads must be >= 1, got " + std::to_string(count));
  CurrentPool();
  std::lock_guard lock(pool_mutex);
  if (pool->num_threads() == count) return;
  delete pool;
  pool = new Pool(count);
}

AloneScope::AloneScope(bool alone) : before_(is_alone) { is_alone = before_ || alone; }
AloneScope::~AloneScope() { is_alone = before_; }

namespace internal {

void RunParallel(int num_tasks, int max_threads, TaskFunction function, void* context) {
  Job job(function, context, num_tasks, max_threads);
  Pool& current = CurrentPool();
  if (num_tasks <= 1 || is_alone || current.num_threads() == 1) {
    job.Work();
  } else {
    current.Run(job);
  }
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace internal
}  // namespace monolith
