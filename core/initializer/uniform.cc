#include <cmath>
#include <string>

#include "initializer/kernels.h"
#include "initializer/uniform_rule.h"

namespace monolith {
namespace {

class RandomUniform final : public Initializer {
 public:
  explicit RandomUniform(const UniformRule& rule) : rule_(rule) {}
  void Fill(uint64_t seed, float* weights, int dim) const override { rule_.Fill(seed, weights, dim); }
  InitializerRule rule(int) const override { return InitializerRule(rule_); }

 private:
  UniformRule rule_;
};

class GlorotUniform final : public Initializer {
 public:
  explicit GlorotUniform(double scale) : scale_(scale) {}
  void Fill(uint64_t seed, float* weights, int dim) const override { GlorotRule(scale_, dim).Fill(seed, weights, dim); }
  InitializerRule rule(int dim) const override { return InitializerRule(GlorotRule(scale_, dim)); }

 private:
  double scale_;
};

}  // namespace

std::unique_ptr<Initializer> MakeRandomUniform(const Params& params) {
  const float low = params.GetFloat("minval");
  const float high = params.GetFloat("maxval");
  if (!(low <= high) || !std::isfinite(high - low)) {
    throw Error(Code::kInvalidArgument,
                "random_uniform: minval must be <= maxval and their distance a finite float, got " +
                    std::to_string(low) + " and " + std::to_string(high));
  }
  return std::make_unique<RandomUniform>(UniformRule{low, high - low, std::nextafter(high, low)});
}

std::unique_ptr<Initializer> MakeGlorotUniform(const Params& params) {
  const float scale = params.GetFloat("scale");
  if (!(scale >= 0x1p-40f && scale <= 0x1p40f)) {
    throw Error(Code::kInvalidArgument,
                "glorot_uniform: scale must be positive and of ordinary size, got " + std::to_string(scale));
  }
  return std::make_unique<GlorotUniform>(static_cast<double>(scale));
}

}  // namespace monolith
