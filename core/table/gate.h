// Lets many calls through at once, and now and then one that must be alone: the cut, a mark, clear.
//
// The lone one waits for the calls in flight and holds back new ones, so it is never starved by them. Not recursive.
#pragma once

#include <condition_variable>
#include <mutex>

namespace monolith {

class Gate {
 public:
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

  class Alone {
   public:
    explicit Alone(Gate& gate) : gate_(gate) {
      std::unique_lock lock(gate_.mutex_);
      gate_.changed_.wait(lock, [&] { return !gate_.closed_; });
      gate_.closed_ = true;
      gate_.changed_.wait(lock, [&] { return gate_.inside_ == 0; });
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

 private:
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  int inside_ = 0;
  bool closed_ = false;
};

}  // namespace monolith
