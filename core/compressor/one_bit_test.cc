#include "compressor/one_bit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace monolith {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Params Parameters(double step_size, double init_scale, double max_scale, double amplitude) {
  return Params(
      {{"step_size", step_size}, {"init_scale", init_scale}, {"max_scale", max_scale}, {"amplitude", amplitude}});
}

TEST(OneBitTest, StoresTheSignAndServesTheAmplitude) {
  const OneBitCompressor compressor(Parameters(200, 1, 10000, 0.05));
  const std::vector<float> values = {
      0.001f, -0.001f, 0.0f, -0.0f, kNan, 1e30f, -std::numeric_limits<float>::infinity()};
  std::vector<std::byte> bytes(values.size());
  std::vector<float> decoded(values.size());
  compressor.Encode(values.data(), bytes.data(), 7);
  compressor.Decode(bytes.data(), decoded.data(), 7);
  EXPECT_EQ(decoded, (std::vector<float>{0.05f, -0.05f, -0.05f, -0.05f, -0.05f, 0.05f, -0.05f}));
}

TEST(OneBitTest, ScaleIsThatOfTheNewestMultipleOfTheStepSize) {
  const OneBitCompressor compressor(Parameters(200, 1, 10000, 0.05));
  EXPECT_DOUBLE_EQ(compressor.ScaleAt(0), 1.0);
  EXPECT_DOUBLE_EQ(compressor.ScaleAt(199), 1.0);
  EXPECT_DOUBLE_EQ(compressor.ScaleAt(200), std::sqrt(2.0));
  EXPECT_DOUBLE_EQ(compressor.ScaleAt(399), std::sqrt(2.0));
  EXPECT_DOUBLE_EQ(compressor.ScaleAt(600), 2.0);
  EXPECT_DOUBLE_EQ(compressor.ScaleAt(-5), 1.0);
}

TEST(OneBitTest, ScaleStopsAtItsMaximum) {
  const OneBitCompressor compressor(Parameters(1, 0.5, 3, 0.05));
  EXPECT_DOUBLE_EQ(compressor.ScaleAt(600), 1.0);
  EXPECT_DOUBLE_EQ(compressor.ScaleAt(7000), 3.0);
  EXPECT_DOUBLE_EQ(compressor.ScaleAt(std::numeric_limits<int64_t>::max()), 3.0);
}

TEST(OneBitTest, ForwardIsAScaledTangent) {
  const OneBitCompressor compressor(Parameters(200, 1, 10000, 0.05));
  const std::vector<float> weights = {0.3f, -1.7f, 0.0f, 40.0f, 1e-6f};
  std::vector<float> values(weights.size());
  ASSERT_TRUE(compressor.quantises_training());
  compressor.Retrieve(weights.data(), values.data(), 5, 250);
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_FLOAT_EQ(values[i], static_cast<float>(0.05 * std::tanh(std::sqrt(2.0) * weights[i])));
  }
}

TEST(OneBitTest, BackwardIsTheSlopeAtTheNewScaleAndLeavesTheGradientAlone) {
  const OneBitCompressor compressor(Parameters(200, 1, 10000, 0.05));
  const std::vector<float> weights = {0.3f, -1.7f, 0.0f, 40.0f, 3.0f};
  const std::vector<float> gradient = {1.0f, -2.0f, 3.0f, 1.0f, 1e-3f};
  std::vector<float> given = gradient;
  std::vector<float> result(weights.size());
  compressor.Backward(weights.data(), given.data(), result.data(), 5, 200);
  EXPECT_EQ(given, gradient);
  for (size_t i = 0; i < weights.size(); ++i) {
    const double cosh = std::cosh(std::sqrt(2.0) * weights[i]);
    EXPECT_FLOAT_EQ(result[i], static_cast<float>(gradient[i] * 0.05f * std::sqrt(2.0) / (cosh * cosh)));
  }
}

TEST(OneBitTest, BackwardIsTheDerivativeOfForward) {
  const OneBitCompressor compressor(Parameters(10, 2, 10000, 0.5));
  for (const float weight : {-0.4f, 0.01f, 0.7f}) {
    const float near[2] = {weight - 1e-3f, weight + 1e-3f};
    float values[2];
    compressor.Retrieve(near, values, 2, 57);
    const float one = 1.0f;
    float slope;
    compressor.Backward(&weight, &one, &slope, 1, 57);
    EXPECT_NEAR((values[1] - values[0]) / (near[1] - near[0]), slope, 1e-3);
  }
}

TEST(OneBitTest, BadParametersAreRefused) {
  EXPECT_THROW(OneBitCompressor(Parameters(0, 1, 10, 0.1)), Error);
  EXPECT_THROW(OneBitCompressor(Parameters(-200, 1, 10, 0.1)), Error);
  EXPECT_THROW(OneBitCompressor(Parameters(1.5, 1, 10, 0.1)), Error);
  EXPECT_THROW(OneBitCompressor(Parameters(kInfinity, 1, 10, 0.1)), Error);
  EXPECT_THROW(OneBitCompressor(Parameters(1, 0, 10, 0.1)), Error);
  EXPECT_THROW(OneBitCompressor(Parameters(1, 2, 1, 0.1)), Error);
  EXPECT_THROW(OneBitCompressor(Parameters(1, 1, kInfinity, 0.1)), Error);
  EXPECT_THROW(OneBitCompressor(Parameters(1, 1, 10, 0.0)), Error);
  EXPECT_THROW(OneBitCompressor(Parameters(1, 1, 10, -0.1)), Error);
  EXPECT_THROW(OneBitCompressor(Parameters(1, 1, 10, static_cast<double>(kNan))), Error);
}

}  // namespace
}  // namespace monolith
