#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "optimizer/row_for_test.h"

namespace monolith {
namespace {

ParamMap GroupParams(double initial, double beta, double lasso, double decay) {
  return {{"initial_accumulator_value", initial},
          {"beta", beta},
          {"l2_regularization_strength", lasso},
          {"weight_decay_factor", decay}};
}

TEST(GroupAdagradTest, FollowsTheRuleInDouble) {
  for (const double lasso : {0.0, 0.4}) {
    for (int dim = 1; dim <= 33; ++dim) {
      RowForTest row("group_adagrad", NoiseForTest(dim, 4), GroupParams(0.1, 0.5, lasso, 0.01));
      EXPECT_EQ(row.state_bytes(), 4);
      const std::vector<float> initial = row.weight_vector();
      std::vector<double> weights(initial.begin(), initial.end());
      double sum = 0.1;
      for (uint32_t update = 0; update < 20; ++update) {
        const std::vector<float> gradient = NoiseForTest(dim, 30 + update);
        row.Update(gradient, 0.05f);
        double largest = 0.0;
        std::vector<double> h(weights.size());
        for (size_t i = 0; i < h.size(); ++i) h[i] = static_cast<double>(gradient[i]) + 0.01 * weights[i];
        for (const double value : h) largest = std::max(largest, value * value);
        sum += largest;
        const double eta = 0.05 / (0.5 + std::sqrt(sum));
        double length = 0.0;
        for (size_t i = 0; i < h.size(); ++i) length += std::pow(h[i] - weights[i] / eta, 2);
        length = std::sqrt(length);
        for (size_t i = 0; i < h.size(); ++i) {
          weights[i] = length < lasso ? 0.0 : -eta * (length - lasso) / length * (h[i] - weights[i] / eta);
        }
      }
      for (int i = 0; i < dim; ++i) {
        ASSERT_NEAR(static_cast<double>(row.weights()[i]), weights[static_cast<size_t>(i)], 2e-6) << dim << lasso;
      }
      ASSERT_NEAR(static_cast<double>(row.state_floats()[0]), sum, 1e-4);
    }
  }
}

TEST(GroupAdagradTest, AccumulatorTakesTheLargestSquare) {
  RowForTest row("group_adagrad", {0.0f, 0.0f, 0.0f}, GroupParams(0.0, 0.0, 0.0, 0.0));
  row.Update({1.0f, -4.0f, 2.0f}, 1.0f);
  EXPECT_EQ(row.state_floats()[0], 16.0f);
  EXPECT_EQ(row.weight_vector(), (std::vector<float>{-0.25f, 1.0f, -0.5f}));
}

TEST(GroupAdagradTest, AllZeroRowStaysZero) {
  for (const double initial : {0.0, 0.1}) {
    for (const double lasso : {0.0, 1.0}) {
      RowForTest row("group_adagrad", {0.0f, 0.0f}, GroupParams(initial, 0.0, lasso, 0.0));
      row.Update({0.0f, 0.0f}, 0.1f);
      EXPECT_EQ(row.weight_vector(), (std::vector<float>{0.0f, 0.0f})) << initial << lasso;
    }
  }
}

TEST(GroupAdagradTest, LearningRateZeroSkipsTheUpdate) {
  RowForTest row("group_adagrad", {0.5f, 0.0f}, GroupParams(0.1, 0.0, 0.3, 0.0));
  row.Update({1.0f, 1.0f}, 0.0f);
  EXPECT_EQ(row.weight_vector(), (std::vector<float>{0.5f, 0.0f}));
  EXPECT_EQ(row.state_floats()[0], 0.1f);
}

TEST(GroupAdagradTest, LassoZeroesTheWholeSegment) {
  RowForTest row("group_adagrad", {0.01f, 0.01f}, GroupParams(1.0, 0.0, 3.0, 0.0));
  row.Update({0.01f, -0.01f}, 1.0f);
  EXPECT_EQ(row.weight_vector(), (std::vector<float>{0.0f, 0.0f}));
}

TEST(GroupAdagradTest, NanStaysVisible) {
  for (const double lasso : {0.0, 1.0}) {
    RowForTest row("group_adagrad", {0.5f, 0.5f}, GroupParams(0.1, 0.0, lasso, 0.0));
    row.Update({1.0f, std::numeric_limits<float>::quiet_NaN()}, 0.1f);
    EXPECT_TRUE(std::isnan(row.state_floats()[0]));
    EXPECT_TRUE(std::isnan(row.weights()[0]) && std::isnan(row.weights()[1]));
  }
}

}  // namespace
}  // namespace monolith
