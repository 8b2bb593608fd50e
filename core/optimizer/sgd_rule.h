// The rule of SGD (row_rule.h has the contract of all rules).
#pragma once

#include "optimizer/row_rule.h"

namespace monolith {

struct SgdRule : ElementwiseRule {
  void Learn(float learning_rate, float gradient, float& weight) const { weight = weight - learning_rate * gradient; }
};

}  // namespace monolith
