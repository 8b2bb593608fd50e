#include <algorithm>
#include <string>

#include "base/random.h"
#include "initializer/kernels.h"
#include "initializer/normal_quantile.h"

namespace monolith {
namespace {

constexpr int kFewWeights = 8;                         // below it a block of quantiles does not pay
constexpr double kCut = 2.0;                           // in standard deviations
constexpr double kBelowCut = 0.022750131948179207200;  // probability of a standard normal below -kCut

// Uniform in the open interval (0, 1): the centres of 2^52 equal cells.
double OpenUniform(const CounterRandom& random, int i) {
  const double cell = static_cast<double>(random.Bits(static_cast<uint64_t>(i)) >> 12);
  return (cell + 0.5) * 0x1p-52;
}

class RandomNormal final : public Initializer {
 public:
  RandomNormal(double mean, double stddev, bool truncated) : mean_(mean), stddev_(stddev), truncated_(truncated) {}

  void Fill(uint64_t seed, float* weights, int dim) const override {
    const CounterRandom random(seed);
    if (dim < kFewWeights) {
      for (int i = 0; i < dim; ++i) weights[i] = WeightOf(NormalQuantile(ProbabilityOf(OpenUniform(random, i))));
      return;
    }
    FillBlocks(random, weights, dim);
  }

  // Apart, because what it keeps on the stack would slow down rows of few weights.
  [[gnu::noinline]] void FillBlocks(const CounterRandom& random, float* weights, int dim) const {
    double values[kMostQuantiles];
    for (int done = 0; done < dim; done += kMostQuantiles) {
      const int count = std::min(kMostQuantiles, dim - done);
      for (int i = 0; i < count; ++i) values[i] = ProbabilityOf(OpenUniform(random, done + i));
      ToNormalQuantiles(values, count);
      for (int i = 0; i < count; ++i) weights[done + i] = WeightOf(values[i]);
    }
  }

 private:
  // Inverting inside the cut gives the same distribution as redrawing outside of it, with one draw.
  double ProbabilityOf(double draw) const { return truncated_ ? kBelowCut + draw * (1.0 - 2.0 * kBelowCut) : draw; }
  float WeightOf(double quantile) const {
    return static_cast<float>(mean_ + stddev_ * (truncated_ ? std::clamp(quantile, -kCut, kCut) : quantile));
  }

  double mean_;
  double stddev_;
  bool truncated_;
};

std::unique_ptr<Initializer> Make(const Params& params, bool truncated) {
  const double stddev = params.Get("stddev");
  if (!(stddev >= 0.0)) {
    throw Error(Code::kInvalidArgument, "random normal: stddev must be >= 0, got " + std::to_string(stddev));
  }
  return std::make_unique<RandomNormal>(params.Get("mean"), stddev, truncated);
}

}  // namespace

std::unique_ptr<Initializer> MakeRandomNormal(const Params& params) { return Make(params, false); }
std::unique_ptr<Initializer> MakeTruncatedNormal(const Params& params) { return Make(params, true); }

}  // namespace monolith
