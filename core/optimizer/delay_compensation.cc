#include <utility>
#include <vector>

#include "optimizer/delay_compensation_rule.h"
#include "optimizer/kernels.h"

namespace monolith {
namespace {

void Compensate(float* __restrict result, const float* __restrict gradient, const float* __restrict weights,
                const float* __restrict latest, int dim, float lambda) {
  for (int i = 0; i < dim; ++i) {
    result[i] = CompensatedGradient(gradient[i], weights[i], latest[i], lambda);
  }
}

class DelayCompensation final : public RowOptimizer {
 public:
  DelayCompensation(std::unique_ptr<RowOptimizer> base, float lambda)
      : RowOptimizer(base->dim()), base_(std::move(base)), lambda_(lambda) {}

  bool needs_whole_context() const override { return true; }
  bool uses_latest() const override { return true; }
  int StateBytes() const override { return base_->StateBytes(); }
  void InitState(std::byte* state) const override { base_->InitState(state); }
  void Update(const UpdateContext& context, float* weights, std::byte* state, const float* gradient) const override {
    if (context.latest == nullptr) {
      base_->Update(context, weights, state, gradient);
      return;
    }
    // The gradient must not be written, and a buffer per thread costs no allocation per row.
    thread_local std::vector<float> compensated;
    if (compensated.size() < static_cast<size_t>(dim())) compensated.resize(static_cast<size_t>(dim()));
    Compensate(compensated.data(), gradient, weights, context.latest, dim(), lambda_);
    base_->Update(context, weights, state, compensated.data());
  }
  RuleView rule() const override {
    RuleView view = base_->rule();
    view.delay_compensation_lambda = lambda_;
    return view;
  }

 private:
  std::unique_ptr<RowOptimizer> base_;
  float lambda_;
};

}  // namespace

std::unique_ptr<RowOptimizer> CompensateDelay(std::unique_ptr<RowOptimizer> base, float lambda) {
  return std::make_unique<DelayCompensation>(std::move(base), lambda);
}

}  // namespace monolith
