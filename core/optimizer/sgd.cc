#include "optimizer/kernels.h"
#include "optimizer/vector_rule.h"

namespace monolith {
namespace {

void Step(float* __restrict weights, const float* __restrict gradient, int dim, float learning_rate) {
  for (int i = 0; i < dim; ++i) weights[i] = weights[i] - learning_rate * gradient[i];
}

class Sgd final : public VectorRule<Sgd> {
 public:
  explicit Sgd(int dim) : VectorRule(dim) {}

  int StateBytes() const override { return 0; }
  void InitState(std::byte*) const override {}
  void Learn(const UpdateContext& context, float* weights, std::byte*, const float* gradient) const {
    Step(weights, gradient, dim(), context.learning_rate);
  }
};

}  // namespace

std::unique_ptr<RowOptimizer> MakeSgd(int dim, const Params&) { return std::make_unique<Sgd>(dim); }

}  // namespace monolith
