#include <algorithm>
#include <cmath>

#include "optimizer/ftrl_rule.h"
#include "optimizer/kernels.h"
#include "optimizer/vector_rule.h"

namespace monolith {
namespace {

// Leaves the roots of the norms in `weights`, whose values are no longer needed: roots are expensive and Solve needs
// them.
void GatherEvidence(float* __restrict weights, float* __restrict norms, float* __restrict zeros,
                    const float* __restrict gradient, int dim, float learning_rate) {
  for (int i = 0; i < dim; ++i) {
    const float norm = norms[i] + gradient[i] * gradient[i];
    const float root = std::sqrt(norm);
    zeros[i] = FtrlEvidence(zeros[i], gradient[i], weights[i], std::sqrt(norms[i]), root, learning_rate);
    norms[i] = norm;
    weights[i] = root;
  }
}

// Turns roots into weights. `shrink` = (l1 - |z|) / |z|, negative.
void Solve(float* __restrict weights, const float* __restrict zeros, int dim, float learning_rate, float shrink,
           const FtrlRule rule) {
  for (int i = 0; i < dim; ++i) {
    weights[i] = learning_rate * zeros[i] * shrink / FtrlDivisor(weights[i], learning_rate, rule);
  }
}

class GroupFtrl final : public VectorRule<GroupFtrl> {
 public:
  GroupFtrl(int dim, const Params& params) : VectorRule(dim), rule_(params) {}

  int StateBytes() const override { return FtrlStateBytes(dim()); }
  void InitState(std::byte* state) const override { InitFtrlState(state, dim(), rule_); }
  void Learn(const UpdateContext& context, float* weights, std::byte* state, const float* gradient) const {
    if (context.learning_rate == 0.0f) return;
    float* norms = Floats(state);
    float* zeros = norms + dim();
    GatherEvidence(weights, norms, zeros, gradient, dim(), context.learning_rate);
    const double length = std::sqrt(SumOfSquares(zeros, dim()));
    const double l1 = static_cast<double>(rule_.l1);
    if (length <= l1) {  // also without any evidence, which would divide 0 by 0
      std::fill_n(weights, dim(), 0.0f);
      return;
    }
    Solve(weights, zeros, dim(), context.learning_rate, static_cast<float>((l1 - length) / length), rule_);
  }

 private:
  FtrlRule rule_;
};

}  // namespace

std::unique_ptr<RowOptimizer> MakeGroupFtrl(int dim, const Params& params) {
  return std::make_unique<GroupFtrl>(dim, params);
}

}  // namespace monolith
