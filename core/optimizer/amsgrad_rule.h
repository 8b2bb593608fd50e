// The rule of AMSGrad: Adam that divides by the largest running mean of squares so far.
#pragma once

#include <algorithm>
#include <cmath>

#include "optimizer/adam_rule.h"

namespace monolith {

// State: m[dim], v[dim], vhat[dim], beta1_power, beta2_power.
template <bool kNesterov>
struct AmsgradRule : AdamMoments {
  static constexpr int kMembers = 3;

  void Learn(float step_size, float gradient, float& weight, float& mean, float& square, float& peak) const {
    const float direction = NextDirection<kNesterov>(gradient, weight, mean, square);
    peak = std::max(peak, square);
    weight = weight - step_size * direction / (std::sqrt(peak) + epsilon);
  }
};

}  // namespace monolith
