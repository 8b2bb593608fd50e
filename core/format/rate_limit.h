// A shared limit of bytes per second. Thread-safe without a lock: a caller books its time slot with one atomic step and
// then sleeps, so no caller ever waits for a sleeping one.
#pragma once

#include <atomic>
#include <cstdint>

namespace monolith {

class RateLimit {
 public:
  // 0 means no limit.
  explicit RateLimit(uint64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // Sleeps until `bytes` more may be sent. Returns early once *cancelled is true; `cancelled` may be null.
  void Wait(uint64_t bytes, const std::atomic<bool>* cancelled);

 private:
  const uint64_t bytes_per_second_;
  std::atomic<int64_t> next_slot_nanoseconds_{0};  // on the steady clock
};

}  // namespace monolith
