#include <algorithm>
#include <string>

#include "initializer/kernels.h"
#include "initializer/normal_rule.h"

namespace monolith {
namespace {

constexpr int kFewWeights = 8;  // below it a block of quantiles does not pay

// Rule: NormalRule or TruncatedNormalRule.
template <typename Rule>
class RandomNormal final : public Initializer {
 public:
  explicit RandomNormal(const Rule& rule) : rule_(rule) {}

  void Fill(uint64_t seed, float* weights, int dim) const override {
    const Rule rule = rule_;  // a copy that `weights` cannot alias
    if (dim >= kFewWeights) return FillBlocks(rule, seed, weights, dim);
    for (int i = 0; i < dim; ++i) weights[i] = rule.Weight(seed, i);
  }
  InitializerRule rule(int) const override { return InitializerRule(rule_); }

 private:
  // Apart, because what it keeps on the stack would slow down rows of few weights.
  [[gnu::noinline]] static void FillBlocks(const Rule rule, uint64_t seed, float* weights, int dim) {
    double values[kMostQuantiles];
    for (int done = 0; done < dim; done += kMostQuantiles) {
      const int count = std::min(kMostQuantiles, dim - done);
      for (int i = 0; i < count; ++i) values[i] = rule.ProbabilityOf(OpenUniform(seed, done + i));
      ToNormalQuantiles(values, count);
      for (int i = 0; i < count; ++i) weights[done + i] = rule.WeightOf(values[i]);
    }
  }

  Rule rule_;
};

template <typename Rule>
std::unique_ptr<Initializer> Make(const Params& params) {
  const double stddev = params.Get("stddev");
  if (!(stddev >= 0.0)) {
    throw Error(Code::kInvalidArgument, "random normal: stddev must be >= 0, got " + std::to_string(stddev));
  }
  return std::make_unique<RandomNormal<Rule>>(Rule{params.Get("mean"), stddev});
}

}  // namespace

std::unique_ptr<Initializer> MakeRandomNormal(const Params& params) { return Make<NormalRule>(params); }
std::unique_ptr<Initializer> MakeTruncatedNormal(const Params& params) { return Make<TruncatedNormalRule>(params); }

}  // namespace monolith
