// The rule of both versions of RMSProp. In double for each weight; state and weight are stored as float, and the root
// is that of the stored float.
#pragma once

#include <cmath>
#include <cstddef>

#include "optimizer/row_rule.h"

namespace monolith {

// State: n[dim].
struct RmspropRule : ElementwiseRule {
  static constexpr int kMembers = 1;

  double Begin(const UpdateContext& context, const std::byte*) const {
    return static_cast<double>(context.learning_rate);
  }
  void Learn(double learning_rate, float gradient, float& stored_weight, float& square) const {
    const double weight = static_cast<double>(stored_weight);
    const double direction = static_cast<double>(gradient) + decay * weight;
    const double sum = momentum * static_cast<double>(square) + fresh * (direction * direction);
    square = static_cast<float>(sum);
    const double root = static_cast<double>(std::sqrt(square));
    stored_weight = static_cast<float>(weight - learning_rate / (root + 1.0) * direction);
  }

  double decay;
  double momentum;
  double fresh;  // weight of the new square: 1 - momentum for a running mean (v1), 1 for a decaying sum (v2)
};

}  // namespace monolith
