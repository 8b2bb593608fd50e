// The rule of batch softmax: the one weight estimates the steps between two updates of the row; the gradient is
// ignored.
#pragma once

#include <cstddef>
#include <cstdint>

#include "optimizer/row_math.h"
#include "optimizer/row_rule.h"

namespace monolith {

struct BatchSoftmaxStep {
  float learning_rate;
  float interval;  // steps since the last update
};

// State: int64 global_step of the last update, 0 at first.
struct BatchSoftmaxRule : ElementwiseRule {
  static constexpr int kScalarBytes = static_cast<int>(sizeof(int64_t));

  void InitScalars(std::byte* last_step) const { StoreStep(last_step, 0); }
  BatchSoftmaxStep Begin(const UpdateContext& context, const std::byte* last_step) const {
    return {context.learning_rate, static_cast<float>(context.step - LoadStep(last_step))};
  }
  void Learn(const BatchSoftmaxStep& step, float, float& weight) const {
    weight = (1.0f - step.learning_rate) * weight + step.learning_rate * step.interval;
  }
  void End(const UpdateContext& context, std::byte* last_step) const { StoreStep(last_step, context.step); }
};

}  // namespace monolith
