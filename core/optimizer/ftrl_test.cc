#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "optimizer/row_for_test.h"

namespace monolith {
namespace {

ParamMap FtrlParams(double initial, double beta, double l1, double l2) {
  return {{"initial_accumulator_value", initial},
          {"beta", beta},
          {"l1_regularization_strength", l1},
          {"l2_regularization_strength", l2}};
}

TEST(FtrlTest, FollowsTheScalarRule) {
  const float lr = 0.05f, beta = 0.5f, l1 = 0.3f, l2 = 0.02f;
  for (int dim = 1; dim <= 33; ++dim) {
    RowForTest row("ftrl", NoiseForTest(dim, 2), FtrlParams(0.1, beta, l1, l2));
    std::vector<float> weights = row.weight_vector();
    std::vector<float> norms(weights.size(), 0.1f), zeros(weights.size(), 0.0f);
    for (uint32_t update = 0; update < 20; ++update) {
      const std::vector<float> gradient = NoiseForTest(dim, 20 + update);
      row.Update(gradient, lr);
      for (size_t i = 0; i < weights.size(); ++i) {
        const float norm = norms[i] + gradient[i] * gradient[i];
        const float s = (std::sqrt(norm) - std::sqrt(norms[i])) / lr;
        zeros[i] = zeros[i] + gradient[i] - s * weights[i];
        norms[i] = norm;
        const float sign = zeros[i] > 0.0f ? 1.0f : -1.0f;
        weights[i] = std::abs(zeros[i]) > l1 ? lr * (sign * l1 - zeros[i]) / (std::sqrt(norm) + beta + l2 * lr) : 0.0f;
      }
    }
    ASSERT_EQ(row.weight_vector(), weights) << dim;
    ASSERT_EQ(std::vector<float>(row.state_floats(), row.state_floats() + dim), norms);
    ASSERT_EQ(std::vector<float>(row.state_floats() + dim, row.state_floats() + 2 * dim), zeros);
  }
}

TEST(FtrlTest, L1ShrinksBothSignsAlike) {
  RowForTest row("ftrl", {0.0f, 0.0f, 0.0f}, FtrlParams(0.0, 0.0, 1.0, 0.0));
  row.Update({3.0f, -3.0f, 0.5f}, 0.5f);
  EXPECT_FLOAT_EQ(row.weights()[0], -0.5f * (3.0f - 1.0f) / 3.0f);
  EXPECT_FLOAT_EQ(row.weights()[1], 0.5f * (3.0f - 1.0f) / 3.0f);
  EXPECT_EQ(row.weights()[2], 0.0f);
}

TEST(FtrlTest, LearningRateZeroSkipsTheUpdate) {
  for (const char* kind : {"ftrl", "group_ftrl"}) {
    RowForTest row(kind, {0.0f, 0.5f}, FtrlParams(0.1, 1.0, 0.0, 0.0));
    row.Update({1.0f, 1.0f}, 0.0f);
    EXPECT_EQ(row.weight_vector(), (std::vector<float>{0.0f, 0.5f})) << kind;
    EXPECT_EQ(row.state_floats()[0], 0.1f) << kind;
    EXPECT_EQ(row.state_floats()[2], 0.0f) << kind;
    row.Update({1.0f, 1.0f}, 0.1f);
    EXPECT_LT(row.weights()[0], 0.0f) << kind;
  }
}

TEST(FtrlTest, NoEvidenceAndNoAccumulatorIsZeroNotNan) {
  for (const char* kind : {"ftrl", "group_ftrl"}) {
    for (const float gradient : {0.0f, 1e-30f, -1e-30f}) {
      RowForTest row(kind, {0.0f, 0.0f}, FtrlParams(0.0, 0.0, 0.0, 0.0));
      row.Update({gradient, gradient}, 0.1f);
      EXPECT_TRUE(std::isfinite(row.weights()[0])) << kind << gradient;
      EXPECT_NEAR(row.weights()[0], 0.0f, 1e-6f) << kind << gradient;
    }
  }
}

TEST(FtrlTest, NanStaysVisible) {
  for (const char* kind : {"ftrl", "group_ftrl"}) {
    RowForTest row(kind, {0.5f}, FtrlParams(0.1, 1.0, 0.2, 0.0));
    row.Update({std::numeric_limits<float>::quiet_NaN()}, 0.1f);
    EXPECT_TRUE(std::isnan(row.weights()[0])) << kind;
  }
}

TEST(GroupFtrlTest, FollowsTheScalarRule) {
  const double lr = 0.05, beta = 1.0, l1 = 0.3, l2 = 0.02;
  for (int dim = 1; dim <= 33; ++dim) {
    RowForTest row("group_ftrl", NoiseForTest(dim, 2), FtrlParams(0.0, beta, l1, l2));
    const std::vector<float> initial = row.weight_vector();
    std::vector<double> weights(initial.begin(), initial.end());
    std::vector<double> norms(weights.size(), 0.0), zeros(weights.size(), 0.0);
    for (uint32_t update = 0; update < 20; ++update) {
      const std::vector<float> gradient = NoiseForTest(dim, 20 + update);
      row.Update(gradient, static_cast<float>(lr));
      double length = 0.0;
      for (size_t i = 0; i < weights.size(); ++i) {
        const double norm = norms[i] + static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
        zeros[i] += static_cast<double>(gradient[i]) - (std::sqrt(norm) - std::sqrt(norms[i])) / lr * weights[i];
        norms[i] = norm;
        length += zeros[i] * zeros[i];
      }
      length = std::sqrt(length);
      for (size_t i = 0; i < weights.size(); ++i) {
        const double divisor = beta + std::sqrt(norms[i]) + l2 * lr;
        weights[i] = length < l1 ? 0.0 : lr * zeros[i] * ((l1 - length) / length) / divisor;
      }
    }
    for (int i = 0; i < dim; ++i)
      ASSERT_NEAR(static_cast<double>(row.weights()[i]), weights[static_cast<size_t>(i)], 2e-5);
  }
}

TEST(GroupFtrlTest, WeakEvidenceZeroesTheWholeSegment) {
  RowForTest row("group_ftrl", {0.0f, 0.0f}, FtrlParams(0.0, 1.0, 5.0, 0.0));
  row.Update({3.0f, 3.9f}, 0.1f);  // length 4.92
  EXPECT_EQ(row.weight_vector(), (std::vector<float>{0.0f, 0.0f}));
  row.Update({0.1f, 0.1f}, 0.1f);  // length 5.06
  EXPECT_LT(row.weights()[0], 0.0f);
  EXPECT_LT(row.weights()[1], 0.0f);
}

TEST(GroupFtrlTest, EvidenceEqualToL1IsZero) {
  RowForTest row("group_ftrl", {0.0f, 0.0f}, FtrlParams(0.0, 1.0, 5.0, 0.0));
  row.Update({3.0f, 4.0f}, 0.1f);
  EXPECT_EQ(row.weight_vector(), (std::vector<float>{0.0f, 0.0f}));
}

TEST(GroupFtrlTest, L2MakesWeightsSmaller) {
  RowForTest without("group_ftrl", {0.0f}, FtrlParams(0.0, 1.0, 0.0, 0.0));
  RowForTest with("group_ftrl", {0.0f}, FtrlParams(0.0, 1.0, 0.0, 10.0));
  without.Update({1.0f}, 0.5f);
  with.Update({1.0f}, 0.5f);
  EXPECT_FLOAT_EQ(without.weights()[0], -0.5f / 2.0f);
  EXPECT_FLOAT_EQ(with.weights()[0], -0.5f / 7.0f);
}

}  // namespace
}  // namespace monolith
