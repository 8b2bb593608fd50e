// Prefix sums on a device.
#pragma once

#include <cstdint>

#include "device/device_memory.h"
#include "device/launcher.h"

namespace monolith::device {

// Writes sums[i] = values[0] + ... + values[i]; `sums` may be `values`.
inline void InclusiveSums(Launcher& launcher, Scratch& scratch, Stream stream, const int32_t* values, uint64_t count,
                          int32_t* sums) {
  const uint64_t num_runs = (count + kSumRun - 1) / kSumRun;
  int32_t* run_sums = nullptr;
  if (num_runs > 1) {
    run_sums = scratch.Take<int32_t>(num_runs);
    launcher.Launch(num_runs, SumRuns{values, count, run_sums}, stream);
    InclusiveSums(launcher, scratch, stream, run_sums, num_runs, run_sums);
  }
  launcher.Launch(num_runs, ExtendRunSums{values, count, run_sums, sums}, stream);
}

}  // namespace monolith::device
