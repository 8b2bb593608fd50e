// How far one call may move the clock by which rows expire: a wrong time must not make a table old.
//
// The clock is the newest time that a store has seen. A time more than a day beyond it is far ahead: it is replaced by
// where the data stands, which is the clock or, if that is later, the lower median of the call's times, at most a day
// beyond the clock. So a minority of wrong times moves nothing, a call whose times are all wrong moves the clock by a
// day, and a real gap in the data closes by a day with each call.
//
// A store without a clock takes the median for it, and leaves more room where the times themselves lie far apart, as in
// shuffled data: four times the way from their lower quartile to the median, if that is more than a day.
//
// Pure functions: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace monolith {

inline constexpr int64_t kMaxTimeStep = 86'400;  // seconds

struct BoundedTimes {
  std::vector<int64_t> times;
  int64_t num_ahead;  // how many were replaced
};

// Nothing if no time is far ahead, which costs one pass. `clock` 0: there is none yet.
std::optional<BoundedTimes> BoundTimes(std::span<const int64_t> times, int64_t clock);

}  // namespace monolith
