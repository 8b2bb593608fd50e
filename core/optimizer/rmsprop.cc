#include <algorithm>
#include <cmath>

#include "optimizer/kernels.h"
#include "optimizer/row_math.h"
#include "optimizer/vector_rule.h"

namespace monolith {
namespace {

struct Rule {
  double decay;
  double momentum;
  double fresh;  // weight of the new square: 1 - momentum for a running mean (v1), 1 for a decaying sum (v2)
};

// In double per element; state and weight are stored as float, and the root is that of the stored float.
void Step(float* __restrict weights, float* __restrict squares, const float* __restrict gradient, int dim,
          double learning_rate, const Rule rule) {
  for (int i = 0; i < dim; ++i) {
    const double weight = static_cast<double>(weights[i]);
    const double direction = static_cast<double>(gradient[i]) + rule.decay * weight;
    const double sum = rule.momentum * static_cast<double>(squares[i]) + rule.fresh * (direction * direction);
    const float square = static_cast<float>(sum);
    const double root = static_cast<double>(std::sqrt(square));
    squares[i] = square;
    weights[i] = static_cast<float>(weight - learning_rate / (root + 1.0) * direction);
  }
}

// State: n[dim].
class Rmsprop final : public VectorRule<Rmsprop> {
 public:
  Rmsprop(int dim, const Rule& rule) : VectorRule(dim), rule_(rule) {}

  int StateBytes() const override { return dim() * kFloatBytes; }
  void InitState(std::byte* state) const override { std::fill_n(Floats(state), dim(), 0.0f); }
  void Learn(const UpdateContext& context, float* weights, std::byte* state, const float* gradient) const {
    Step(weights, Floats(state), gradient, dim(), static_cast<double>(context.learning_rate), rule_);
  }

 private:
  Rule rule_;
};

std::unique_ptr<RowOptimizer> Make(int dim, const Params& params, bool fading_sum) {
  const double momentum = static_cast<double>(params.GetFloat("momentum"));
  const double decay = static_cast<double>(params.GetFloat("weight_decay_factor"));
  return std::make_unique<Rmsprop>(dim, Rule{decay, momentum, fading_sum ? 1.0 : 1.0 - momentum});
}

}  // namespace

std::unique_ptr<RowOptimizer> MakeRmsprop(int dim, const Params& params) { return Make(dim, params, false); }
std::unique_ptr<RowOptimizer> MakeRmspropV2(int dim, const Params& params) { return Make(dim, params, true); }

}  // namespace monolith
