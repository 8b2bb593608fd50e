// Whether a draw admits a new id (probabilistic_filter.h has the probabilities). Pure functions; thread-safe.
#pragma once

#include <cstdint>

#include "base/elementary.h"
#include "base/hash.h"
#include "base/random.h"

namespace monolith {

struct ProbabilisticRule {
  bool equal_probability;

  // `turn` is the step of the call, or the number of earlier offers of the id; `count` its occurrences in the call.
  bool Admits(uint64_t seed, uint64_t turn, uint32_t count, uint32_t threshold) const {
    // Far from the counters of other users: if the word were shared with an initializer, admission would depend on the
    // initial weights of an id.
    constexpr uint64_t kCounter = 0x61646d6974000000ull;
    const uint64_t word = CounterRandom(Combine(seed, turn)).Bits(kCounter);
    return equal_probability ? AdmitsEveryOccurrenceAlike(word, count, threshold)
                             : AdmitsInProportion(word, count, threshold);
  }

  // P(draw * threshold < count * 2^32) is count / threshold to within 2^-32; neither product exceeds 64 bits.
  static bool AdmitsInProportion(uint64_t word, uint32_t count, uint32_t threshold) {
    const uint64_t draw = word >> 32;
    return draw * threshold < (uint64_t{count} << 32);
  }

  static bool AdmitsEveryOccurrenceAlike(uint64_t word, uint32_t count, uint32_t threshold) {
    constexpr double kMissedAfterThreshold = 0.05;
    const double draw = static_cast<double>(word >> 11) * 0x1p-53;
    const double occurrences = static_cast<double>(count) / static_cast<double>(threshold);
    // 1 - 0.05^(count / threshold), without the cancellation of the direct formula.
    return draw < -Expm1(occurrences * Log(kMissedAfterThreshold));
  }
};

}  // namespace monolith
