// Pauses pushes, so that all owners of a model can reach the same batches before they are cut.
//
// Pushes enter and leave; none waits inside: a push that may not pass is rejected and retried. While the gate is held
// only pushes up to a limit pass, by default those that were applied already. It opens automatically after its time,
// since the process that held it may have died. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>

#include "base/mutex.h"

namespace monolith::ps {

class PushGate {
 public:
  // `on_open` is called, by any thread, when pushes that were rejected may be retried.
  explicit PushGate(std::function<void()> on_open) : on_open_(std::move(on_open)) {}

  // Returns false if the push must be retried later. `applied`: the worker's last batch here; a push that was applied
  // before always passes.
  bool Enter(int64_t worker, int64_t seq, int64_t applied);
  void Leave();
  // Returns when no push is inside, after at most `seconds`; false if one still is.
  bool Hold(double seconds);
  // Worker -> the last batch that may pass while the gate is held.
  void Allow(const std::map<int64_t, int64_t>& limits);
  void Open();

 private:
  using Clock = std::chrono::steady_clock;
  bool IsHeld() const REQUIRES(mutex_) { return Clock::now() < held_until_; }

  const std::function<void()> on_open_;
  Mutex mutex_;
  CondVar left_;
  int64_t inside_ GUARDED_BY(mutex_) = 0;
  Clock::time_point held_until_ GUARDED_BY(mutex_) = Clock::time_point::min();
  std::map<int64_t, int64_t> limits_ GUARDED_BY(mutex_);
};

}  // namespace monolith::ps
