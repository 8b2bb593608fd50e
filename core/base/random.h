// Counter-based randomness: every draw is a pure function of a seed and a counter, so a result does not depend on
// threads, restarts or the machine that computes it. A seed for one row is Combine(Combine(table seed, id), step).
#pragma once

#include <cstdint>

#include "base/hash.h"

namespace monolith {

class CounterRandom {
 public:
  explicit constexpr CounterRandom(uint64_t seed) : seed_(seed) {}

  constexpr uint64_t Bits(uint64_t counter) const { return Mix64(seed_ + kGoldenGamma * (counter + 1)); }
  // Uniform in [0, 1), 24 random bits: every value is exactly a float. One Bits() word yields two of them.
  constexpr float Uniform(uint64_t counter) const {
    const uint64_t word = Bits(counter >> 1);
    const uint32_t half = (counter & 1) ? static_cast<uint32_t>(word >> 40) : (static_cast<uint32_t>(word) & 0xffffffu);
    return static_cast<float>(half) * 0x1p-24f;
  }

 private:
  uint64_t seed_;
};

// Fills values[i] with map(Uniform(first + i)), at half the cost of single calls: a word yields two draws. The bits are
// drawn first and converted in a second loop, which vectorises; they are kept in a small separate buffer, because
// reading back what was just written to fresh memory would stall. REQUIRES: first is even.
template <typename Map>
inline void FillUniform(const CounterRandom& random, uint64_t first, float* values, int count, const Map& map) {
  constexpr int kDraws = 64;
  uint32_t draws[kDraws];
  for (int done = 0; done < count; done += kDraws) {
    const int left = count - done < kDraws ? count - done : kDraws;
    for (int i = 0; i < left; i += 2) {  // with an odd count the last word yields one draw only
      const uint64_t word = random.Bits((first + static_cast<uint64_t>(done + i)) / 2);
      draws[i] = static_cast<uint32_t>(word) & 0xffffffu;
      draws[i + 1] = static_cast<uint32_t>(word >> 40);
    }
    for (int i = 0; i < left; ++i) {
      values[done + i] = map(static_cast<float>(static_cast<int32_t>(draws[i])) * 0x1p-24f);
    }
  }
}

}  // namespace monolith
