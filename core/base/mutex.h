// Mutexes that clang checks: what a mutex guards and which functions need it held are declared, and every clang build
// refuses code that breaks a declaration (-Wthread-safety). Other compilers ignore the declarations.
//
// The names are those of Abseil and LevelDB. Members that are read without their mutex on purpose (atomics) are not
// declared as guarded.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#if defined(__clang__)
#define MONOLITH_THREAD_ANNOTATION(attribute) __attribute__((attribute))
#else
#define MONOLITH_THREAD_ANNOTATION(attribute)
#endif

// A type that can be held, and one that holds another in its lifetime.
#define CAPABILITY(name) MONOLITH_THREAD_ANNOTATION(capability(name))
#define SCOPED_CAPABILITY MONOLITH_THREAD_ANNOTATION(scoped_lockable)
// A member that is accessed only with the mutex held.
#define GUARDED_BY(mutex) MONOLITH_THREAD_ANNOTATION(guarded_by(mutex))
// A function whose callers hold the mutex.
#define REQUIRES(...) MONOLITH_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
// Functions that lock and unlock.
#define ACQUIRE(...) MONOLITH_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define ACQUIRE_SHARED(...) MONOLITH_THREAD_ANNOTATION(acquire_shared_capability(__VA_ARGS__))
#define RELEASE(...) MONOLITH_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
// A function that the analysis cannot follow; a comment has the reason.
#define NO_THREAD_SAFETY_ANALYSIS MONOLITH_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace monolith {

class CAPABILITY("mutex") Mutex {
 public:
  void Lock() ACQUIRE() { mutex_.lock(); }
  void Unlock() RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;

  std::mutex mutex_;
};

// Holds a mutex from its construction to its destruction, or to Unlock().
class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() RELEASE() {
    if (is_held_) mutex_.Unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void Lock() ACQUIRE() {
    mutex_.Lock();
    is_held_ = true;
  }
  void Unlock() RELEASE() {
    is_held_ = false;
    mutex_.Unlock();
  }

 private:
  Mutex& mutex_;
  bool is_held_ = true;
};

// A condition that threads wait for, in a loop: `while (!ready_) changed_.Wait(mutex_);`.
class CondVar {
 public:
  void Wait(Mutex& mutex) REQUIRES(mutex) {
    Adopted lock(mutex);
    condition_.wait(lock.lock);
  }
  // Returns false at the deadline.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline) REQUIRES(mutex) {
    Adopted lock(mutex);
    return condition_.wait_until(lock.lock, deadline) == std::cv_status::no_timeout;
  }
  template <typename Duration>
  void WaitFor(Mutex& mutex, const Duration& pause) REQUIRES(mutex) {
    Adopted lock(mutex);
    condition_.wait_for(lock.lock, pause);
  }
  void NotifyAll() { condition_.notify_all(); }

 private:
  // The caller's lock, in the form that the standard library waits with; the caller still holds it afterwards.
  struct Adopted {
    explicit Adopted(Mutex& mutex) : lock(mutex.mutex_, std::adopt_lock) {}
    ~Adopted() { lock.release(); }
    std::unique_lock<std::mutex> lock;
  };

  std::condition_variable condition_;
};

class CAPABILITY("mutex") SharedMutex {
 private:
  friend class ReaderLock;
  friend class WriterLock;

  std::shared_mutex mutex_;
};

// Held by any number of readers, or by one writer.
class SCOPED_CAPABILITY ReaderLock {
 public:
  explicit ReaderLock(SharedMutex& mutex) ACQUIRE_SHARED(mutex) : lock_(mutex.mutex_) {}
  ~ReaderLock() RELEASE() {}
  ReaderLock(const ReaderLock&) = delete;
  ReaderLock& operator=(const ReaderLock&) = delete;

 private:
  std::shared_lock<std::shared_mutex> lock_;
};

class SCOPED_CAPABILITY WriterLock {
 public:
  explicit WriterLock(SharedMutex& mutex) ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~WriterLock() RELEASE() {}
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  std::unique_lock<std::shared_mutex> lock_;
};

}  // namespace monolith
