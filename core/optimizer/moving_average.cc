#include "optimizer/kernels.h"
#include "optimizer/vector_rule.h"

namespace monolith {
namespace {

void Step(float* __restrict weights, const float* __restrict samples, int dim, float momentum) {
  const float fresh = 1.0f - momentum;
  for (int i = 0; i < dim; ++i) weights[i] = momentum * weights[i] + fresh * samples[i];
}

// The "gradient" is a sample to average; there is neither state nor learning rate.
class MovingAverage final : public VectorRule<MovingAverage> {
 public:
  MovingAverage(int dim, const Params& params) : VectorRule(dim), momentum_(params.GetFloat("momentum")) {}

  int StateBytes() const override { return 0; }
  void InitState(std::byte*) const override {}
  void Learn(const UpdateContext&, float* weights, std::byte*, const float* gradient) const {
    Step(weights, gradient, dim(), momentum_);
  }

 private:
  float momentum_;
};

}  // namespace

std::unique_ptr<RowOptimizer> MakeMovingAverage(int dim, const Params& params) {
  return std::make_unique<MovingAverage>(dim, params);
}

}  // namespace monolith
