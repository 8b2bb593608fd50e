// Weights drawn from a normal distribution, complete or cut at two standard deviations. Pure functions of seed and
// place.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/random.h"
#include "initializer/normal_quantile_rule.h"

namespace monolith {

// Uniform in the open interval (0, 1): the centres of 2^52 equal cells.
inline double OpenUniform(uint64_t seed, int i) {
  const double cell = static_cast<double>(CounterRandom(seed).Bits(static_cast<uint64_t>(i)) >> 12);
  return (cell + 0.5) * 0x1p-52;
}

struct NormalRule {
  double mean;
  double stddev;

  // A weight is that of the quantile of the probability of a draw.
  double ProbabilityOf(double draw) const { return draw; }
  float WeightOf(double quantile) const { return static_cast<float>(mean + stddev * quantile); }
  float Weight(uint64_t seed, int i) const { return WeightOf(NormalQuantile(ProbabilityOf(OpenUniform(seed, i)))); }
};

// Inverting inside the cut gives the same distribution as redrawing outside of it, with one draw.
struct TruncatedNormalRule {
  double mean;
  double stddev;

  double ProbabilityOf(double draw) const {
    constexpr double kBelowCut = 0.022750131948179207200;  // probability of a standard normal below two deviations
    return kBelowCut + draw * (1.0 - 2.0 * kBelowCut);
  }
  float WeightOf(double quantile) const {
    constexpr double kCut = 2.0;
    return static_cast<float>(mean + stddev * std::max(-kCut, std::min(quantile, kCut)));
  }
  float Weight(uint64_t seed, int i) const { return WeightOf(NormalQuantile(ProbabilityOf(OpenUniform(seed, i)))); }
};

}  // namespace monolith
