#include "ps/push_gate.h"

#include <algorithm>

namespace monolith::ps {

bool PushGate::Enter(int64_t worker, int64_t seq, int64_t applied) {
  MutexLock lock(mutex_);
  if (IsHeld() && seq > applied) {
    const auto limit = limits_.find(worker);
    if (limit == limits_.end() || seq > limit->second) return false;
  }
  ++inside_;
  return true;
}

void PushGate::Leave() {
  MutexLock lock(mutex_);
  if (--inside_ == 0) left_.NotifyAll();
}

bool PushGate::Hold(double seconds) {
  MutexLock lock(mutex_);
  held_until_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                   std::chrono::duration<double>(std::clamp(seconds, 0.0, 3600.0)));
  limits_.clear();
  const Clock::time_point until = held_until_;
  while (inside_ != 0) {
    if (!left_.WaitUntil(mutex_, until)) return inside_ == 0;
  }
  return true;
}

void PushGate::Allow(const std::map<int64_t, int64_t>& limits) {
  {
    MutexLock lock(mutex_);
    for (const auto& [worker, seq] : limits) limits_[worker] = seq;
  }
  on_open_();
}

void PushGate::Open() {
  {
    MutexLock lock(mutex_);
    held_until_ = Clock::time_point::min();
    limits_.clear();
  }
  on_open_();
}

}  // namespace monolith::ps
