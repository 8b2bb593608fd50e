// Limits how far one call may advance the clock by which rows expire: a wrong time must not expire a table.
//
// The clock is the newest time that a store has seen. A time more than a day after it is far ahead: it is replaced by
// the current time of the data, which is the clock or, if that is later, the lower median of the call's times, at most
// a day after the clock. So a minority of wrong times changes nothing, a call whose times are all wrong advances the
// clock by a day, and a real gap in the data closes by a day with each call.
//
// A store without a clock uses the median instead, and allows more if the times themselves are far apart, as in
// shuffled data: four times the distance from their lower quartile to the median, if that is more than a day.
//
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace monolith {

inline constexpr int64_t kMaxTimeStep = 86'400;  // seconds

struct BoundedTimes {
  std::vector<int64_t> times;
  int64_t num_ahead;  // number of times replaced
};

// Returns nothing if no time is far ahead, which costs one pass. `clock` 0: there is none yet.
std::optional<BoundedTimes> BoundTimes(std::span<const int64_t> times, int64_t clock);

}  // namespace monolith
