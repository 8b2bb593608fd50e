#include <algorithm>
#include <cmath>

#include "optimizer/kernels.h"
#include "optimizer/row_math.h"
#include "optimizer/vector_rule.h"

namespace monolith {
namespace {

struct Rule {
  float decay;
  float ratio;
  float epsilon;
};

void Step(float* __restrict weights, float* __restrict accum, float* __restrict accum_update,
          const float* __restrict gradient, int dim, float learning_rate, const Rule rule) {
  const float fresh = 1.0f - rule.ratio;
  for (int i = 0; i < dim; ++i) {
    const float direction = gradient[i] + rule.decay * weights[i];
    const float square = rule.ratio * accum[i] + fresh * (direction * direction);
    const float update = std::sqrt(accum_update[i] + rule.epsilon) / std::sqrt(square + rule.epsilon) * direction;
    weights[i] = weights[i] - learning_rate * update;
    accum_update[i] = rule.ratio * accum_update[i] + fresh * (update * update);
    accum[i] = square;
  }
}

// State: accum[dim], accum_update[dim].
class Adadelta final : public VectorRule<Adadelta> {
 public:
  Adadelta(int dim, const Params& params)
      : VectorRule(dim),
        rule_{params.GetFloat("weight_decay_factor"), params.GetFloat("averaging_ratio"), params.GetFloat("epsilon")} {}

  int StateBytes() const override { return 2 * dim() * kFloatBytes; }
  void InitState(std::byte* state) const override { std::fill_n(Floats(state), 2 * dim(), 0.0f); }
  void Learn(const UpdateContext& context, float* weights, std::byte* state, const float* gradient) const {
    float* accum = Floats(state);
    Step(weights, accum, accum + dim(), gradient, dim(), context.learning_rate, rule_);
  }

 private:
  Rule rule_;
};

}  // namespace

std::unique_ptr<RowOptimizer> MakeAdadelta(int dim, const Params& params) {
  return std::make_unique<Adadelta>(dim, params);
}

}  // namespace monolith
