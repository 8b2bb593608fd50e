#include "table/time_bound.h"

#include <algorithm>

namespace monolith {
namespace {

struct Middle {
  int64_t quartile;  // the lower one in both cases
  int64_t median;
};

Middle MiddleOf(std::span<const int64_t> times) {
  std::vector<int64_t> sorted(times.begin(), times.end());
  const auto last = static_cast<int64_t>(sorted.size()) - 1;
  const auto median = sorted.begin() + last / 2, quartile = sorted.begin() + last / 4;
  std::nth_element(sorted.begin(), median, sorted.end());
  if (quartile != median) std::nth_element(sorted.begin(), quartile, median);
  return {*quartile, *median};
}

}  // namespace

std::optional<BoundedTimes> BoundTimes(std::span<const int64_t> times, int64_t clock) {
  if (times.empty()) return std::nullopt;
  const int64_t newest = *std::max_element(times.begin(), times.end());
  const bool has_clock = clock > 0;
  if (has_clock && newest <= clock + kMaxTimeStep) return std::nullopt;
  const auto [quartile, median] = MiddleOf(times);
  const int64_t limit = has_clock ? clock + kMaxTimeStep : median + std::max(kMaxTimeStep, 4 * (median - quartile));
  if (newest <= limit) return std::nullopt;
  const int64_t here = std::min(std::max(clock, median), limit);
  BoundedTimes bounded{{times.begin(), times.end()}, 0};
  for (int64_t& time : bounded.times) {
    if (time <= limit) continue;
    time = here;
    ++bounded.num_ahead;
  }
  return bounded;
}

}  // namespace monolith
