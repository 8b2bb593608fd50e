// Admits many calls concurrently, and from time to time one that needs exclusive access: the cut, a mark, clear.
//
// The exclusive call waits for the calls in flight and blocks new ones, so they never starve it. Not recursive. Calls
// that change rows declare it (Writing): a reader that saw no writing call inside, before and after its read, need not
// validate what it read. A fork of the process waits for the calls in flight, too, so that the child sees the guarded
// state as it is between calls.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>

#include "base/forks.h"
#include "table/bucket_lock.h"

namespace monolith {

class Gate final : AtRestInForks {
 public:
  Gate() : AtRestInForks(Kind::kCalls) {}

  class Shared {
   public:
    explicit Shared(Gate& gate) : gate_(gate) {
      std::unique_lock lock(gate_.mutex_);
      gate_.changed_.wait(lock, [&] { return !gate_.closed_; });
      ++gate_.inside_;
    }
    ~Shared() {
      std::lock_guard lock(gate_.mutex_);
      if (--gate_.inside_ == 0 && gate_.closed_) gate_.changed_.notify_all();
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
      std::unique_lock lock(gate_.mutex_);
      gate_.Close(lock);
    }
    ~Alone() {
      std::lock_guard lock(gate_.mutex_);
      gate_.closed_ = false;
      gate_.changed_.notify_all();
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
  void Close(std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [&] { return !closed_; });
    closed_ = true;
    changed_.wait(lock, [&] { return inside_ == 0; });
  }

  // The mutex stays locked while the process forks, so that no thread is in the middle of a change of the members
  // below.
  void Rest() override {
    std::unique_lock lock(mutex_);
    Close(lock);
    lock.release();
  }
  void GoOnInParent() override {
    closed_ = false;
    changed_.notify_all();
    mutex_.unlock();
  }
  void GoOnInChild() override {
    new (&changed_) std::condition_variable;  // it may count waiters that do not exist in the child
    closed_ = false;
    mutex_.unlock();
  }

  std::atomic<uint64_t> writes_{0};  // writing calls begun since the start, times kOneBegun, plus those inside

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  int inside_ = 0;
  bool closed_ = false;
};

}  // namespace monolith
