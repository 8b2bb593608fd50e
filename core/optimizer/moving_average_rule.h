// The rule of moving averages. The "gradient" is a sample to average; there is neither state nor learning rate.
#pragma once

#include "optimizer/row_rule.h"

namespace monolith {

struct MovingAverageRule : ElementwiseRule {
  void Learn(float, float sample, float& weight) const { weight = momentum * weight + (1.0f - momentum) * sample; }

  float momentum;
};

}  // namespace monolith
