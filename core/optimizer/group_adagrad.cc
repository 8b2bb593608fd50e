#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "optimizer/kernels.h"
#include "optimizer/row_math.h"
#include "optimizer/vector_rule.h"

namespace monolith {
namespace {

// The largest square of g + decay * w; NaN if there is one. Compared as integers, which order like non-negative floats,
// put NaN above all, and need no order of evaluation.
float LargestSquare(const float* __restrict weights, const float* __restrict gradient, int dim, float decay) {
  uint32_t largest = 0;
  for (int i = 0; i < dim; ++i) {
    const float direction = gradient[i] + decay * weights[i];
    const uint32_t square = std::bit_cast<uint32_t>(direction * direction) & 0x7fffffffu;
    largest = std::max(largest, square);
  }
  return std::bit_cast<float>(largest);
}

void Descend(float* __restrict weights, const float* __restrict gradient, int dim, float decay, float eta) {
  for (int i = 0; i < dim; ++i) {
    const float direction = gradient[i] + decay * weights[i];
    weights[i] = weights[i] - eta * direction;
  }
}

// Replaces each weight w by z = g + decay * w - w / eta.
void Displace(float* __restrict weights, const float* __restrict gradient, int dim, float decay, float eta) {
  for (int i = 0; i < dim; ++i) {
    weights[i] = gradient[i] + decay * weights[i] - weights[i] / eta;
  }
}

void Scale(float* weights, int dim, float factor) {
  for (int i = 0; i < dim; ++i) weights[i] = factor * weights[i];
}

// State: grad_square_sum, one for the segment.
class GroupAdagrad final : public VectorRule<GroupAdagrad> {
 public:
  GroupAdagrad(int dim, const Params& params)
      : VectorRule(dim),
        initial_(params.GetFloat("initial_accumulator_value")),
        beta_(params.GetFloat("beta")),
        lasso_(params.GetFloat("l2_regularization_strength")),
        decay_(params.GetFloat("weight_decay_factor")) {}

  int StateBytes() const override { return kFloatBytes; }
  void InitState(std::byte* state) const override { *Floats(state) = initial_; }
  void Learn(const UpdateContext& context, float* weights, std::byte* state, const float* gradient) const {
    if (context.learning_rate == 0.0f) return;  // the rule divides by it
    float& sum = *Floats(state);
    sum = sum + LargestSquare(weights, gradient, dim(), decay_);
    const float eta = context.learning_rate / (beta_ + AsDivisor(std::sqrt(sum)));
    if (lasso_ == 0.0f) {  // the same rule with less rounding and no division by the length, which may be 0
      Descend(weights, gradient, dim(), decay_, eta);
      return;
    }
    Displace(weights, gradient, dim(), decay_, eta);
    const double length = std::sqrt(SumOfSquares(weights, dim()));
    const double lasso = static_cast<double>(lasso_);
    if (length <= lasso) {
      std::fill_n(weights, dim(), 0.0f);
      return;
    }
    Scale(weights, dim(), -eta * static_cast<float>((length - lasso) / length));
  }

 private:
  float initial_;
  float beta_;
  float lasso_;
  float decay_;
};

}  // namespace

std::unique_ptr<RowOptimizer> MakeGroupAdagrad(int dim, const Params& params) {
  return std::make_unique<GroupAdagrad>(dim, params);
}

}  // namespace monolith
