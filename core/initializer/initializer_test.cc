#include "initializer/initializer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "initializer/normal_quantile_rule.h"
#include "initializer/uniform_rule.h"

namespace monolith {
namespace {

using ParamMap = std::map<std::string, double>;

std::vector<float> Filled(const std::string& kind, const ParamMap& params, int dim, uint64_t seed = 1) {
  std::vector<float> values(static_cast<size_t>(dim) + 1, -99.0f);
  MakeInitializer(kind, Params(params))->Fill(seed, values.data(), dim);
  EXPECT_EQ(values.back(), -99.0f) << kind << " wrote behind its dims";
  values.pop_back();
  return values;
}

std::vector<float> Many(const std::string& kind, const ParamMap& params, int dim = 16) {
  std::vector<float> all;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    const std::vector<float> row = Filled(kind, params, dim, seed);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

struct Moments {
  double mean = 0.0, variance = 0.0, lowest = INFINITY, highest = -INFINITY;
};

Moments MomentsOf(const std::vector<float>& values) {
  Moments moments;
  for (const float value : values) {
    moments.mean += static_cast<double>(value) / static_cast<double>(values.size());
    moments.lowest = std::min(moments.lowest, static_cast<double>(value));
    moments.highest = std::max(moments.highest, static_cast<double>(value));
  }
  for (const float value : values) {
    moments.variance += std::pow(static_cast<double>(value) - moments.mean, 2) / static_cast<double>(values.size());
  }
  return moments;
}

const std::map<std::string, ParamMap>& EveryKind() {
  static const std::map<std::string, ParamMap> kinds = {{"zeros", {}},
                                                        {"ones", {}},
                                                        {"constant", {{"constant", 0.5}}},
                                                        {"random_uniform", {{"minval", -0.05}, {"maxval", 0.05}}},
                                                        {"glorot_uniform", {{"scale", 1}}},
                                                        {"random_normal", {{"mean", 0}, {"stddev", 1}}},
                                                        {"truncated_normal", {{"mean", 0}, {"stddev", 1}}}};
  return kinds;
}

TEST(InitializerTest, ConstantsAreConstant) {
  EXPECT_EQ(Filled("zeros", {}, 3), (std::vector<float>{0.0f, 0.0f, 0.0f}));
  EXPECT_EQ(Filled("ones", {}, 2), (std::vector<float>{1.0f, 1.0f}));
  EXPECT_EQ(Filled("constant", {{"constant", -2.5}}, 2), (std::vector<float>{-2.5f, -2.5f}));
}

TEST(InitializerTest, ValuesDependOnTheSeedAlone) {
  for (const auto& [kind, params] : EveryKind()) {
    EXPECT_EQ(Filled(kind, params, 33, 5), Filled(kind, params, 33, 5)) << kind;
    const bool is_random = kind.find("normal") != std::string::npos || kind.find("uniform") != std::string::npos;
    EXPECT_EQ(Filled(kind, params, 33, 5) == Filled(kind, params, 33, 6), !is_random) << kind;
  }
}

TEST(InitializerTest, EveryDimFillsExactlyItsDims) {
  for (const auto& [kind, params] : EveryKind()) {
    for (int dim = 1; dim <= 67; ++dim) {
      for (const float value : Filled(kind, params, dim)) ASSERT_NE(value, -99.0f) << kind << dim;
    }
  }
}

TEST(RandomUniformTest, TakesTheDrawsOfTheCounter) {
  for (const int dim : {1, 2, 7, 16, 33}) {
    const std::vector<float> values = Filled("random_uniform", {{"minval", -1}, {"maxval", 3}}, dim, 42);
    for (int i = 0; i < dim; ++i) {
      const float draw = CounterRandom(42).Uniform(static_cast<uint64_t>(i));
      ASSERT_EQ(values[static_cast<size_t>(i)], -1.0f + draw * 4.0f);
    }
  }
}

TEST(UniformRuleTest, SingleWeightsAreThoseOfARow) {
  const UniformRule rule = GlorotRule(3.0, 5);
  for (int dim = 1; dim <= 67; ++dim) {
    std::vector<float> row(static_cast<size_t>(dim));
    rule.Fill(42, row.data(), dim);
    for (int i = 0; i < dim; ++i) ASSERT_EQ(row[static_cast<size_t>(i)], rule.Weight(42, i)) << dim << ' ' << i;
  }
}

TEST(RandomUniformTest, FillsItsIntervalEvenly) {
  const Moments moments = MomentsOf(Many("random_uniform", {{"minval", -1}, {"maxval", 3}}));
  EXPECT_NEAR(moments.mean, 1.0, 0.01);
  EXPECT_NEAR(moments.variance, 16.0 / 12.0, 0.02);
  EXPECT_GE(moments.lowest, -1.0);
  EXPECT_LT(moments.highest, 3.0);
  EXPECT_LT(moments.lowest, -0.99);
  EXPECT_GT(moments.highest, 2.99);
}

TEST(RandomUniformTest, NeverReachesItsUpperEnd) {
  // One float apart: half of all sums would round up to the end.
  const float low = 1.0f, high = std::nextafter(1.0f, 2.0f);
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (const float value : Filled("random_uniform", {{"minval", low}, {"maxval", high}}, 16, seed))
      ASSERT_EQ(value, low);
  }
}

TEST(RandomUniformTest, EmptyIntervalIsItsEnd) {
  EXPECT_EQ(Filled("random_uniform", {{"minval", 0.25}, {"maxval", 0.25}}, 2), (std::vector<float>{0.25f, 0.25f}));
}

TEST(GlorotUniformTest, NarrowsWithTheDim) {
  for (const int dim : {1, 5, 16}) {
    const double limit = std::sqrt(6.0 * 2.0 / (1 + dim));
    const Moments moments = MomentsOf(Many("glorot_uniform", {{"scale", 2}}, dim));
    EXPECT_NEAR(moments.mean, 0.0, 0.02 * limit);
    EXPECT_NEAR(moments.variance, limit * limit / 3.0, 0.02 * limit * limit);
    EXPECT_GE(moments.lowest, -limit * (1 + 1e-6));
    EXPECT_LT(moments.highest, limit * (1 + 1e-6));
  }
}

TEST(RandomNormalTest, HasItsMoments) {
  const std::vector<float> values = Many("random_normal", {{"mean", 2}, {"stddev", 3}});
  const Moments moments = MomentsOf(values);
  EXPECT_NEAR(moments.mean, 2.0, 0.03);
  EXPECT_NEAR(moments.variance, 9.0, 0.1);
  double beyond_two = 0.0;
  for (const float value : values)
    beyond_two += std::abs(value - 2.0f) > 6.0f ? 1.0 / static_cast<double>(values.size()) : 0.0;
  EXPECT_NEAR(beyond_two, 0.0455, 0.002);
}

TEST(TruncatedNormalTest, StaysWithinTwoDeviations) {
  const Moments moments = MomentsOf(Many("truncated_normal", {{"mean", 2}, {"stddev", 3}}));
  EXPECT_NEAR(moments.mean, 2.0, 0.03);
  EXPECT_NEAR(moments.variance, 9.0 * 0.7737413, 0.08);  // 1 - 4 phi(2) / (2 Phi(2) - 1)
  EXPECT_GE(moments.lowest, -4.0);
  EXPECT_LE(moments.highest, 8.0);
  EXPECT_GT(moments.highest, 7.9);
}

TEST(NormalQuantileTest, InvertsTheDistributionFunction) {
  for (double z = -8.0; z <= 8.0; z += 0.0625) {
    const double probability = 0.5 * std::erfc(-z / std::sqrt(2.0));
    // Near 1 the probability itself has few digits left: one of its units moves z by 1 / density.
    const double density = std::exp(-0.5 * z * z) / std::sqrt(2.0 * M_PI);
    EXPECT_NEAR(NormalQuantile(std::min(probability, 1.0 - 0x1p-53)), z, 1e-12 + 0x1p-52 / density) << z;
  }
  EXPECT_EQ(NormalQuantile(0.5), 0.0);
}

TEST(InitializerFactoryTest, RefusesWhatItCannotDo) {
  const auto refused = [](const std::string& kind, const ParamMap& params) {
    try {
      MakeInitializer(kind, Params(params));
    } catch (const Error& error) {
      return error.code() == Code::kInvalidArgument;
    }
    return false;
  };
  EXPECT_TRUE(refused("uniform", {}));
  EXPECT_TRUE(refused("constant", {}));
  EXPECT_TRUE(refused("constant", {{"constant", INFINITY}}));
  EXPECT_TRUE(refused("random_uniform", {{"minval", 1}, {"maxval", 0}}));
  EXPECT_TRUE(refused("random_uniform", {{"minval", -3e38}, {"maxval", 3e38}}));
  EXPECT_TRUE(refused("random_normal", {{"mean", 0}, {"stddev", -1}}));
  EXPECT_TRUE(refused("glorot_uniform", {{"scale", 0}}));
}

}  // namespace
}  // namespace monolith
