#include <algorithm>

#include "initializer/constant_rule.h"
#include "initializer/kernels.h"

namespace monolith {
namespace {

class Constant final : public Initializer {
 public:
  explicit Constant(float value) : rule_{value} {}
  void Fill(uint64_t seed, float* weights, int dim) const override { std::fill_n(weights, dim, rule_.Weight(seed, 0)); }
  InitializerRule rule(int) const override { return InitializerRule(rule_); }

 private:
  ConstantRule rule_;
};

}  // namespace

std::unique_ptr<Initializer> MakeZeros(const Params&) { return std::make_unique<Constant>(0.0f); }
std::unique_ptr<Initializer> MakeOnes(const Params&) { return std::make_unique<Constant>(1.0f); }
std::unique_ptr<Initializer> MakeConstant(const Params& params) {
  return std::make_unique<Constant>(params.GetFloat("constant"));
}

}  // namespace monolith
