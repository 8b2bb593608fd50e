#include <algorithm>

#include "optimizer/kernels.h"
#include "optimizer/row_math.h"
#include "optimizer/vector_rule.h"

namespace monolith {
namespace {

struct Rule {
  float decay;
  float momentum;
};

template <bool kNesterov>
void Step(float* __restrict weights, float* __restrict velocities, const float* __restrict gradient, int dim,
          float learning_rate, const Rule rule) {
  const float ahead = 1.0f + rule.momentum;
  for (int i = 0; i < dim; ++i) {
    const float descent = learning_rate * (gradient[i] + rule.decay * weights[i]);
    const float carried = rule.momentum * velocities[i];
    const float velocity = carried - descent;
    weights[i] = kNesterov ? weights[i] - carried + ahead * velocity : weights[i] + velocity;
    velocities[i] = velocity;
  }
}

// State: n[dim].
class Momentum final : public VectorRule<Momentum> {
 public:
  Momentum(int dim, const Params& params)
      : VectorRule(dim),
        rule_{params.GetFloat("weight_decay_factor"), params.GetFloat("momentum")},
        nesterov_(params.GetBool("use_nesterov")) {}

  int StateBytes() const override { return dim() * kFloatBytes; }
  void InitState(std::byte* state) const override { std::fill_n(Floats(state), dim(), 0.0f); }
  void Learn(const UpdateContext& context, float* weights, std::byte* state, const float* gradient) const {
    if (nesterov_) {
      Step<true>(weights, Floats(state), gradient, dim(), context.learning_rate, rule_);
    } else {
      Step<false>(weights, Floats(state), gradient, dim(), context.learning_rate, rule_);
    }
  }

 private:
  Rule rule_;
  bool nesterov_;
};

}  // namespace

std::unique_ptr<RowOptimizer> MakeMomentum(int dim, const Params& params) {
  return std::make_unique<Momentum>(dim, params);
}

}  // namespace monolith
