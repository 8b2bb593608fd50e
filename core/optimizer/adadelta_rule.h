// The rule of Adadelta (row_rule.h has the contract of all rules).
#pragma once

#include <cmath>

#include "optimizer/row_rule.h"

namespace monolith {

// State: accum[dim], accum_update[dim].
struct AdadeltaRule : ElementwiseRule {
  static constexpr int kMembers = 2;

  void Learn(float learning_rate, float gradient, float& weight, float& accum, float& accum_update) const {
    const float fresh = 1.0f - ratio;
    const float direction = gradient + decay * weight;
    const float square = ratio * accum + fresh * (direction * direction);
    const float update = std::sqrt(accum_update + epsilon) / std::sqrt(square + epsilon) * direction;
    weight = weight - learning_rate * update;
    accum_update = ratio * accum_update + fresh * (update * update);
    accum = square;
  }

  float decay;
  float ratio;
  float epsilon;
};

}  // namespace monolith
