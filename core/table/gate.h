// Admits many calls concurrently, and from time to time one that needs exclusive access: the cut, a mark, clear.
//
// The exclusive call waits for the calls in flight and blocks new ones, so they never starve it. Not recursive. Calls
// that change rows declare it (Writing): a reader that saw no writing call inside, before and after its read, need not
// validate what it read. A fork of the process waits for the calls in flight, too, so that the child sees the guarded
// state as it is between calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>

#include "base/forks.h"
#include "base/mutex.h"
#include "table/bucket_lock.h"

namespace monolith {

class Gate final : AtRestInForks {
 public:
  Gate() : AtRestInForks(Kind::kCalls) {}

  class Shared {
   public:
    explicit Shared(Gate& gate) : gate_(gate) {
      MutexLock lock(gate_.mutex_);
      while (gate_.closed_) gate_.changed_.Wait(gate_.mutex_);
      ++gate_.inside_;
    }
    ~Shared() {
      MutexLock lock(gate_.mutex_);
      if (--gate_.inside_ == 0 && gate_.closed_) gate_.changed_.NotifyAll();
    }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;

   private:
    Gate& gate_;
  };

  // A call that may change rows.
  class Writing {
   public:
    explicit Writing(Gate& gate) : call_(gate), gate_(gate) {
      gate_.writes_.fetch_add(kOneBegun + 1, std::memory_order_relaxed);
      WriteFence();  // no change of the call may become visible before the call itself
    }
    ~Writing() { gate_.writes_.fetch_sub(1, std::memory_order_release); }
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;

   private:
    const Shared call_;
    Gate& gate_;
  };

  class Alone {
   public:
    explicit Alone(Gate& gate) : gate_(gate) {
      MutexLock lock(gate_.mutex_);
      gate_.Close();
    }
    ~Alone() {
      MutexLock lock(gate_.mutex_);
      gate_.closed_ = false;
      gate_.changed_.NotifyAll();
    }
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;

   private:
    Gate& gate_;
  };

  // A word that differs whenever a writing call has begun or ended since. Readers put a ReadFence() between it and the
  // data they read.
  uint64_t Writes() const { return writes_.load(std::memory_order_relaxed); }
  static bool IsNobodyWriting(uint64_t writes) { return writes % kOneBegun == 0; }

 private:
  static constexpr uint64_t kOneBegun = uint64_t{1} << 24;

  // Waits until no call is inside; from then on new calls wait.
  void Close() REQUIRES(mutex_) {
    while (closed_) changed_.Wait(mutex_);
    closed_ = true;
    while (inside_ != 0) changed_.Wait(mutex_);
  }

  // The mutex stays locked while the process forks, so that no thread is in the middle of a change of the members
  // below.
  void Rest() override ACQUIRE(mutex_) {
    mutex_.Lock();
    Close();
  }
  void GoOnInParent() override RELEASE(mutex_) {
    closed_ = false;
    changed_.NotifyAll();
    mutex_.Unlock();
  }
  void GoOnInChild() override RELEASE(mutex_) {
    new (&changed_) CondVar;  // it may count waiters that do not exist in the child
    closed_ = false;
    mutex_.Unlock();
  }

  std::atomic<uint64_t> writes_{0};  // writing calls begun since the start, times kOneBegun, plus those inside

  Mutex mutex_;
  CondVar changed_;
  int inside_ GUARDED_BY(mutex_) = 0;
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace monolith
