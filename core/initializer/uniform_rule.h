// Weights spread evenly over an interval. Pure functions of seed and place.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/random.h"

namespace monolith {

// Uniform in [low, low + width), never above `highest`: the sum may round up to the excluded end.
struct UniformRule {
  float low;
  float width;
  float highest;  // `low` itself when the interval is empty

  float OfDraw(float draw) const { return std::min(low + draw * width, highest); }

  float Weight(uint64_t seed, int i) const { return OfDraw(CounterRandom(seed).Uniform(static_cast<uint64_t>(i))); }
  // The first `dim` weights, at half the cost of single ones.
  void Fill(uint64_t seed, float* weights, int dim) const {
    FillUniform(CounterRandom(seed), 0, weights, dim, [rule = *this](float draw) { return rule.OfDraw(draw); });
  }
};

// Uniform in [-limit, limit) with limit = sqrt(6 * scale / (1 + dim)). REQUIRES: the limit is a normal float.
inline UniformRule GlorotRule(double scale, int dim) {
  const float limit = static_cast<float>(std::sqrt(6.0 * scale / (1.0 + dim)));
  const float below_limit = std::bit_cast<float>(std::bit_cast<uint32_t>(limit) - 1);
  return {-limit, 2.0f * limit, below_limit};
}

}  // namespace monolith
