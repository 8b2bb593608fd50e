#include <cmath>

#include "optimizer/ftrl_rule.h"
#include "optimizer/kernels.h"
#include "optimizer/vector_rule.h"

namespace monolith {
namespace {

void Step(float* __restrict weights, float* __restrict norms, float* __restrict zeros, const float* __restrict gradient,
          int dim, float learning_rate, const FtrlRule rule) {
  for (int i = 0; i < dim; ++i) {
    const float norm = norms[i] + gradient[i] * gradient[i];
    const float root = std::sqrt(norm);
    const float zero = FtrlEvidence(zeros[i], gradient[i], weights[i], std::sqrt(norms[i]), root, learning_rate);
    norms[i] = norm;
    zeros[i] = zero;
    // Written so that a NaN stays visible and does not become a weight of 0.
    const float beyond = Choose(std::abs(zero) <= rule.l1, 0.0f, std::copysign(rule.l1, zero) - zero);
    weights[i] = learning_rate * beyond / FtrlDivisor(root, learning_rate, rule);
  }
}

class Ftrl final : public VectorRule<Ftrl> {
 public:
  Ftrl(int dim, const Params& params) : VectorRule(dim), rule_(params) {}

  int StateBytes() const override { return FtrlStateBytes(dim()); }
  void InitState(std::byte* state) const override { InitFtrlState(state, dim(), rule_); }
  void Learn(const UpdateContext& context, float* weights, std::byte* state, const float* gradient) const {
    if (context.learning_rate == 0.0f) return;
    float* norms = Floats(state);
    Step(weights, norms, norms + dim(), gradient, dim(), context.learning_rate, rule_);
  }

 private:
  FtrlRule rule_;
};

}  // namespace

std::unique_ptr<RowOptimizer> MakeFtrl(int dim, const Params& params) { return std::make_unique<Ftrl>(dim, params); }

}  // namespace monolith
