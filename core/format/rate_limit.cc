#include "format/rate_limit.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace monolith {
namespace {

int64_t NowNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

constexpr int64_t kLongestSleep = 20'000'000;  // 20 ms: the longest delay of a cancellation

}  // namespace

void RateLimit::Wait(uint64_t bytes, const std::atomic<bool>* cancelled) {
  if (bytes_per_second_ == 0) return;
  const auto cost = static_cast<int64_t>(1e9 * static_cast<double>(bytes) / static_cast<double>(bytes_per_second_));
  const int64_t asked = NowNanoseconds();
  int64_t booked = next_slot_nanoseconds_.load(std::memory_order_relaxed);
  int64_t start;
  do {
    start = std::max(booked, asked);
  } while (!next_slot_nanoseconds_.compare_exchange_weak(booked, start + cost, std::memory_order_relaxed));
  for (int64_t now = asked; now < start; now = NowNanoseconds()) {
    if (cancelled != nullptr && cancelled->load(std::memory_order_relaxed)) return;
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(start - now, kLongestSleep)));
  }
}

}  // namespace monolith
