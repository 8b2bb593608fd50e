#include <algorithm>

#include "optimizer/adagrad_rule.h"
#include "optimizer/kernels.h"
#include "optimizer/vector_rule.h"

namespace monolith {
namespace {

// State: norm[ceil(dim / run)].
class Adagrad final : public VectorRule<Adagrad> {
 public:
  Adagrad(int dim, const Params& params)
      : VectorRule(dim),
        initial_(params.GetFloat("initial_accumulator_value")),
        decay_(params.GetFloat("weight_decay_factor")),
        run_(CountParameter(params, "hessian_compression_times")) {}

  int StateBytes() const override { return AdagradAccumulators(dim(), run_) * kFloatBytes; }
  void InitState(std::byte* state) const override {
    std::fill_n(Floats(state), AdagradAccumulators(dim(), run_), initial_);
  }
  void Learn(const UpdateContext& context, float* weights, std::byte* state, const float* gradient) const {
    ApplyAdagrad<false>(weights, Floats(state), gradient, dim(), run_, {context.learning_rate, decay_});
  }

 private:
  float initial_;
  float decay_;
  int run_;
};

}  // namespace

std::unique_ptr<RowOptimizer> MakeAdagrad(int dim, const Params& params) {
  return std::make_unique<Adagrad>(dim, params);
}

}  // namespace monolith
