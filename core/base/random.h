// Counter-based randomness: every draw is a pure function of a seed and a counter, so a result does not depend on
// threads, restarts or the machine that computes it. A seed for one row is Combine(Combine(table seed, id), step).
#pragma once

#include <bit>
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

// Fills values[i] with map(Uniform(first + i)), at half the price of asking one by one: a word serves two draws.
// The bits are drawn first and converted in a second loop, which vectorises. REQUIRES: first is even.
template <typename Map>
inline void FillUniform(const CounterRandom& random, uint64_t first, float* values, int count, const Map& map) {
  for (int i = 0; i < count / 2; ++i) {
    const uint64_t word = random.Bits(first / 2 + static_cast<uint64_t>(i));
    values[2 * i] = std::bit_cast<float>(static_cast<uint32_t>(word) & 0xffffffu);
    values[2 * i + 1] = std::bit_cast<float>(static_cast<uint32_t>(word >> 40));
  }
  if (count % 2 != 0) {
    const uint64_t word = random.Bits(first / 2 + static_cast<uint64_t>(count / 2));
    values[count - 1] = std::bit_cast<float>(static_cast<uint32_t>(word) & 0xffffffu);
  }
  for (int i = 0; i < count; ++i) values[i] = map(static_cast<float>(std::bit_cast<int32_t>(values[i])) * 0x1p-24f);
}

}  // namespace monolith
