#include <algorithm>
#include <utility>

#include "base/random.h"
#include "optimizer/kernels.h"
#include "optimizer/stochastic_rounding_rule.h"

namespace monolith {
namespace {

constexpr int kChunk = 64;

void RoundAll(float* __restrict weights, const float* __restrict uniforms, int count) {
  for (int i = 0; i < count; ++i) weights[i] = RoundToHalf(weights[i], uniforms[i]);
}

class StochasticRounding final : public RowOptimizer {
 public:
  explicit StochasticRounding(std::unique_ptr<RowOptimizer> base) : RowOptimizer(base->dim()), base_(std::move(base)) {}

  bool needs_whole_context() const override { return true; }
  bool uses_latest() const override { return base_->uses_latest(); }
  int StateBytes() const override { return base_->StateBytes(); }
  void InitState(std::byte* state) const override { base_->InitState(state); }
  void Update(const UpdateContext& context, float* weights, std::byte* state, const float* gradient) const override {
    base_->Update(context, weights, state, gradient);
    const CounterRandom random(context.random_seed);
    float uniforms[kChunk];  // drawn separately, so that the rounding vectorises
    for (int begin = 0; begin < dim(); begin += kChunk) {
      const int count = std::min(dim() - begin, kChunk);
      FillUniform(random, static_cast<uint64_t>(begin), uniforms, count, [](float draw) { return draw; });
      RoundAll(weights + begin, uniforms, count);
    }
  }
  RuleView rule() const override {
    RuleView view = base_->rule();
    view.stochastic_rounding = true;
    return view;
  }

 private:
  std::unique_ptr<RowOptimizer> base_;
};

}  // namespace

std::unique_ptr<RowOptimizer> RoundStochastically(std::unique_ptr<RowOptimizer> base) {
  return std::make_unique<StochasticRounding>(std::move(base));
}

}  // namespace monolith
