// The rule of momentum (row_rule.h has the contract of all rules).
#pragma once

#include "optimizer/row_rule.h"

namespace monolith {

// State: n[dim].
template <bool kNesterov>
struct MomentumRule : ElementwiseRule {
  static constexpr int kMembers = 1;

  void Learn(float learning_rate, float gradient, float& weight, float& velocity) const {
    const float descent = learning_rate * (gradient + decay * weight);
    const float carried = momentum * velocity;
    velocity = carried - descent;
    weight = kNesterov ? weight - carried + (1.0f + momentum) * velocity : weight + velocity;
  }

  float decay;
  float momentum;
};

}  // namespace monolith
