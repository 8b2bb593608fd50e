// Inclusive prefix sums of 32-bit counts, without barriers: sums of runs of neighbours, their prefix sums by the same
// kernels (device/prefix_sums.h), then those inside each run. A thread for each run.
#pragma once

#include <cstdint>

#include "device/kernels/thread.h"

namespace monolith::device {

inline constexpr uint32_t kSumRun = 16;

struct SumRuns {
  const int32_t* values;
  uint64_t count;
  int32_t* sums;  // [count / kSumRun, rounded up]

  void operator()() const {
    const uint64_t begin = ThreadNumber() * kSumRun;
    if (begin >= count) return;
    const uint64_t end = begin + kSumRun < count ? begin + kSumRun : count;
    int32_t sum = 0;
    for (uint64_t i = begin; i < end; ++i) sum += values[i];
    sums[begin / kSumRun] = sum;
  }
};

struct ExtendRunSums {
  const int32_t* values;
  uint64_t count;
  const int32_t* run_sums;  // inclusive prefix sums of those of SumRuns; null if there is one run
  int32_t* sums;            // [count]; may be `values`

  void operator()() const {
    const uint64_t run = ThreadNumber(), begin = run * kSumRun;
    if (begin >= count) return;
    const uint64_t end = begin + kSumRun < count ? begin + kSumRun : count;
    int32_t sum = run == 0 ? 0 : run_sums[run - 1];
    for (uint64_t i = begin; i < end; ++i) {
      sum += values[i];
      sums[i] = sum;
    }
  }
};

}  // namespace monolith::device
