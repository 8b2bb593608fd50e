#include <algorithm>
#include <cfloat>
#include <cmath>
#include <utility>

#include "base/half.h"
#include "base/random.h"
#include "optimizer/kernels.h"
#include "optimizer/row_math.h"

namespace monolith {
namespace {

constexpr int kChunk = 64;
constexpr float kLargestHalf = 65504.0f;

// Rounds to one of the two halves around `weight`: the upper with a probability equal to the relative distance of the
// weight from the lower. A representable weight (also an infinite one) stays; a finite one beyond the range becomes the
// largest half. The products and differences below are exact: neighbouring halves are a power of two apart.
inline float RoundToHalf(float weight, float uniform) {
  const float size = std::abs(weight);
  const bool beyond = (size > kLargestHalf) & (size <= FLT_MAX);
  const float bounded = Choose(beyond, std::copysign(kLargestHalf, weight), weight);
  const float down = HalfToFloat(FloatToHalfTowardNegative(bounded));
  const float up = HalfToFloat(FloatToHalfTowardPositive(bounded));
  return Choose(uniform * (up - down) < bounded - down, up, down);
}

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

 private:
  std::unique_ptr<RowOptimizer> base_;
};

}  // namespace

std::unique_ptr<RowOptimizer> RoundStochastically(std::unique_ptr<RowOptimizer> base) {
  return std::make_unique<StochasticRounding>(std::move(base));
}

}  // namespace monolith
