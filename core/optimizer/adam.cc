#include <algorithm>
#include <cmath>

#include "optimizer/adam_rule.h"
#include "optimizer/kernels.h"
#include "optimizer/row_math.h"
#include "optimizer/vector_rule.h"

namespace monolith {
namespace {

template <bool kNesterov>
void Step(float* __restrict weights, float* __restrict means, float* __restrict squares,
          const float* __restrict gradient, int dim, float alpha, const AdamRule rule) {
  const float fresh1 = 1.0f - rule.beta1;
  const float fresh2 = 1.0f - rule.beta2;
  for (int i = 0; i < dim; ++i) {
    const float sample = gradient[i] + rule.decay * weights[i];
    const float mean = NextMean(means[i], sample, fresh1);
    const float square = NextMean(squares[i], sample * sample, fresh2);
    means[i] = mean;
    squares[i] = square;
    const float direction = AdamDirection<kNesterov>(sample, mean, rule.beta1);
    weights[i] = weights[i] - alpha * direction / (std::sqrt(square) + rule.epsilon);
  }
}

// State: m[dim], v[dim], beta1_power, beta2_power.
class Adam final : public VectorRule<Adam> {
 public:
  Adam(int dim, const Params& params) : VectorRule(dim), rule_(params) {}

  int StateBytes() const override { return (2 * dim() + 2) * kFloatBytes; }
  void InitState(std::byte* state) const override {
    std::fill_n(Floats(state), 2 * dim(), 0.0f);
    InitPowers(Floats(state) + 2 * dim(), rule_);
  }
  void Learn(const UpdateContext& context, float* weights, std::byte* state, const float* gradient) const {
    float* means = Floats(state);
    float* powers = means + 2 * dim();
    const float alpha = AdamStepSize(context.learning_rate, powers);
    if (rule_.nesterov) {
      Step<true>(weights, means, means + dim(), gradient, dim(), alpha, rule_);
    } else {
      Step<false>(weights, means, means + dim(), gradient, dim(), alpha, rule_);
    }
    AdvancePowers(powers, rule_);
  }

 private:
  AdamRule rule_;
};

}  // namespace

std::unique_ptr<RowOptimizer> MakeAdam(int dim, const Params& params) { return std::make_unique<Adam>(dim, params); }

}  // namespace monolith
