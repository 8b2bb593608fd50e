// Counter-based randomness: every draw is a pure function of a seed and a counter, so a result does not depend on threads,
// restarts or the machine that computes it. A seed for one row is Combine(Combine(table seed, id), step).
#pragma once

#include <cstdint>

#include "base/hash.h"

namespace monolith {

class CounterRandom {
 public:
  explicit constexpr CounterRandom(uint64_t seed) : seed_(seed) {}

  constexpr uint64_t Bits(uint64_t counter) const { return Mix64(seed_ + kGoldenGamma * (counter + 1)); }
  // Uniform in [0, 1), 24 random bits: every value is a float exactly. One Bits() word serves two of them.
  constexpr float Uniform(uint64_t counter) const {
    const uint64_t word = Bits(counter >> 1);
    const uint32_t half = (counter & 1) ? static_cast<uint32_t>(word >> 40) : (static_cast<uint32_t>(word) & 0xffffffu);
    return static_cast<float>(half) * 0x1p-24f;
  }

 private:
  uint64_t seed_;
};

// The draws Uniform(first), Uniform(first + 1), ... at once, at half their price: one word serves two.
// REQUIRES: first is even.
inline void FillUniform(const CounterRandom& random, uint64_t first, float* values, int count) {
  const int pairs = count / 2;
  for (int i = 0; i < pairs; ++i) {
    const uint64_t word = random.Bits(first / 2 + static_cast<uint64_t>(i));
    values[2 * i] = static_cast<float>(static_cast<int32_t>(word & 0xffffffu)) * 0x1p-24f;
    values[2 * i + 1] = static_cast<float>(static_cast<int32_t>(word >> 40)) * 0x1p-24f;
  }
  if (count % 2 != 0) values[count - 1] = random.Uniform(first + static_cast<uint64_t>(count - 1));
}

}  // namespace monolith
