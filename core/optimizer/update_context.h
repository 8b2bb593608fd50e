// What the update of one segment of a row depends on besides weights, state and gradient.
#pragma once

#include <cstdint>

namespace monolith {

struct UpdateContext {
  float learning_rate;   // of this segment, schedules and warm-up already applied
  int64_t step;          // global step of the call, >= 0
  uint64_t random_seed;  // differs by table, id, segment and step
  const float* latest;   // weights of this segment that the worker read; null when the call has none
};

}  // namespace monolith
