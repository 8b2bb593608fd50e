#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "base/random.h"
#include "initializer/kernels.h"

namespace monolith {
namespace {

// Uniform in [low, low + width), never above `highest`: the sum may round up to the excluded end.
void FillBetween(uint64_t seed, float* weights, int dim, float low, float width, float highest) {
  FillUniform(CounterRandom(seed), 0, weights, dim, [=](float draw) { return std::min(low + draw * width, highest); });
}

class RandomUniform final : public Initializer {
 public:
  RandomUniform(float low, float high) : low_(low), width_(high - low), highest_(std::nextafter(high, low)) {}

  void Fill(uint64_t seed, float* weights, int dim) const override {
    FillBetween(seed, weights, dim, low_, width_, highest_);
  }

 private:
  float low_;
  float width_;
  float highest_;  // `low` itself when the interval is empty
};

// Uniform in [-limit, limit) with limit = sqrt(6 * scale / (1 + dim)).
class GlorotUniform final : public Initializer {
 public:
  explicit GlorotUniform(double scale) : scale_(scale) {}

  void Fill(uint64_t seed, float* weights, int dim) const override {
    const float limit = static_cast<float>(std::sqrt(6.0 * scale_ / (1.0 + dim)));
    const float below_limit = std::bit_cast<float>(std::bit_cast<uint32_t>(limit) - 1);
    FillBetween(seed, weights, dim, -limit, 2.0f * limit, below_limit);
  }

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
  return std::make_unique<RandomUniform>(low, high);
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
