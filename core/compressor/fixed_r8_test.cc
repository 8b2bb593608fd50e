#include "compressor/fixed_r8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace monolith {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

int Quantised(double r, float value) {
  const FixedR8Compressor compressor(Params({{"r", r}}));
  std::byte byte;
  compressor.Encode(&value, &byte, 1);
  return std::to_integer<int>(byte) > 127 ? std::to_integer<int>(byte) - 256 : std::to_integer<int>(byte);
}

TEST(FixedR8Test, HalvesOfAStepGoAwayFromZero) {
  EXPECT_EQ(Quantised(1.0, 0.5f / 128), 1);
  EXPECT_EQ(Quantised(1.0, -0.5f / 128), -1);
  EXPECT_EQ(Quantised(1.0, 2.5f / 128), 3);
  EXPECT_EQ(Quantised(1.0, -2.5f / 128), -3);
  EXPECT_EQ(Quantised(1.0, 0.499f / 128), 0);
  EXPECT_EQ(Quantised(1.0, -0.499f / 128), 0);
}

TEST(FixedR8Test, ZeroOfEitherSignAndNanBecomeZero) {
  EXPECT_EQ(Quantised(1.0, 0.0f), 0);
  EXPECT_EQ(Quantised(1.0, -0.0f), 0);
  EXPECT_EQ(Quantised(1.0, kNan), 0);
  EXPECT_EQ(Quantised(1.0, -kNan), 0);
}

TEST(FixedR8Test, ValuesBeyondTheRangeSaturateOnTheirOwnSide) {
  for (const float large : {1.0f, 1.7e7f, 3e9f, 3.4e38f, kInfinity}) {
    EXPECT_EQ(Quantised(1.0, large), 127) << large;
    EXPECT_EQ(Quantised(1.0, -large), -128) << large;
  }
}

TEST(FixedR8Test, RangeScalesTheStep) {
  EXPECT_EQ(Quantised(2.0, 1.0f), 64);
  EXPECT_EQ(Quantised(0.25, -0.25f), -128);
  EXPECT_EQ(Quantised(0.25, 0.125f), 64);
}

TEST(FixedR8Test, ErrorIsAtMostHalfAStepInsideTheRange) {
  const FixedR8Compressor compressor(Params({{"r", 0.3}}));
  std::mt19937 random(301);
  std::uniform_real_distribution<float> inside(-0.3f, 0.3f * 127 / 128);
  std::vector<float> values(1000);
  for (float& value : values) value = inside(random);
  std::vector<std::byte> bytes(values.size());
  std::vector<float> decoded(values.size());
  compressor.Encode(values.data(), bytes.data(), 1000);
  compressor.Decode(bytes.data(), decoded.data(), 1000);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_LE(std::abs(decoded[i] - values[i]), 0.3f / 256 * 1.0001f);
}

TEST(FixedR8Test, TrainingReadsWhatServingWillDecode) {
  const FixedR8Compressor compressor(Params({{"r", 0.7}}));
  const std::vector<float> weights = {0.1f, -0.2f, 0.69f, 5.0f, -5.0f, kNan, 0.0f, 0.7f * 1.5f / 128, 1e-20f};
  const int dim = static_cast<int>(weights.size());
  std::vector<std::byte> bytes(weights.size());
  std::vector<float> served(weights.size());
  std::vector<float> trained(weights.size());
  compressor.Encode(weights.data(), bytes.data(), dim);
  compressor.Decode(bytes.data(), served.data(), dim);
  ASSERT_TRUE(compressor.quantises_training());
  compressor.Retrieve(weights.data(), trained.data(), dim, 3);
  EXPECT_EQ(trained, served);
}

TEST(FixedR8Test, GradientPassesStraightThrough) {
  const FixedR8Compressor compressor(Params({{"r", 1.0}}));
  const std::vector<float> weights = {100.0f, -0.001f};
  const std::vector<float> gradient = {0.25f, -3.0f};
  std::vector<float> passed(2);
  compressor.Backward(weights.data(), gradient.data(), passed.data(), 2, 0);
  EXPECT_EQ(passed, gradient);
}

TEST(FixedR8Test, RangesWithoutAStepAreRefused) {
  for (const double r : {0.0, -1.0, 1e-44, static_cast<double>(kInfinity), static_cast<double>(kNan)}) {
    EXPECT_THROW(FixedR8Compressor(Params({{"r", r}})), Error) << r;
  }
  EXPECT_THROW(FixedR8Compressor{Params()}, Error);
}

}  // namespace
}  // namespace monolith
