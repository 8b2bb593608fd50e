// Rounding of updated weights to binary16, up or down at random. A pure function.
#pragma once

#include <cfloat>
#include <cmath>

#include "base/half.h"
#include "optimizer/row_math.h"

namespace monolith {

// Rounds to one of the two halves around `weight`: the upper with a probability equal to the relative distance of the
// weight from the lower. A representable weight (also an infinite one) stays; a finite one beyond the range becomes the
// largest half. The products and differences below are exact: neighbouring halves are a power of two apart.
//
// `uniform` of weight i of a segment is CounterRandom(random seed of the update).Uniform(i).
inline float RoundToHalf(float weight, float uniform) {
  constexpr float kLargestHalf = 65504.0f;
  const float size = std::abs(weight);
  const bool beyond = (size > kLargestHalf) & (size <= FLT_MAX);
  const float bounded = Choose(beyond, std::copysign(kLargestHalf, weight), weight);
  const float down = HalfToFloat(FloatToHalfTowardNegative(bounded));
  const float up = HalfToFloat(FloatToHalfTowardPositive(bounded));
  return Choose(uniform * (up - down) < bounded - down, up, down);
}

}  // namespace monolith
