#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "optimizer/row_for_test.h"

namespace monolith {
namespace {

ParamMap Plain(double initial = 0.1, double decay = 0.0, int run = 1) {
  return {{"initial_accumulator_value", initial}, {"weight_decay_factor", decay}, {"hessian_compression_times", run}};
}

ParamMap Dynamic(double decay, bool decoupled, bool dynamic, bool flipped, double temperature) {
  ParamMap params = Plain(0.1, decay);
  params.insert({{"decouple_weight_decay", decoupled},
                 {"enable_dynamic_wd", dynamic},
                 {"flip_direction", flipped},
                 {"dynamic_wd_temperature", temperature}});
  return params;
}

TEST(AdagradTest, FollowsTheScalarRuleInEveryDim) {
  const float decay = 0.01f;
  for (int dim = 1; dim <= 33; ++dim) {
    RowForTest row("adagrad", NoiseForTest(dim, 1), Plain(0.1, decay));
    std::vector<float> weights = row.weight_vector();
    std::vector<float> norms(weights.size(), 0.1f);
    for (uint32_t update = 0; update < 20; ++update) {
      const std::vector<float> gradient = NoiseForTest(dim, 10 + update);
      row.Update(gradient, 0.05f);
      for (size_t i = 0; i < weights.size(); ++i) {
        const float h = gradient[i] + decay * weights[i];
        norms[i] = norms[i] + h * h;
        weights[i] = weights[i] - 0.05f / std::sqrt(norms[i]) * h;
      }
    }
    ASSERT_EQ(row.weight_vector(), weights) << dim;
    ASSERT_EQ(std::vector<float>(row.state_floats(), row.state_floats() + dim), norms) << dim;
  }
}

TEST(AdagradTest, AccumulatorOfZeroNeverGivesNan) {
  for (const float gradient : {0.0f, 1e-30f, -1e-38f, 1e-45f}) {  // squares of 0
    RowForTest row("adagrad", {0.5f, -0.5f}, Plain(0.0));
    row.Update({gradient, gradient}, 0.1f);
    EXPECT_FLOAT_EQ(row.weights()[0], 0.5f) << gradient;
    EXPECT_FLOAT_EQ(row.weights()[1], -0.5f) << gradient;
  }
}

TEST(AdagradTest, HugeGradientsStopTheStepInsteadOfBreakingIt) {
  RowForTest row("adagrad", {0.5f}, Plain());
  row.Update({3e38f}, 0.1f);  // its square is infinite
  EXPECT_EQ(row.weights()[0], 0.5f);
}

TEST(AdagradTest, CompressionSharesOneAccumulatorPerRun) {
  RowForTest row("adagrad", {0.0f, 0.0f, 0.0f, 0.0f, 0.0f}, Plain(1.0, 0.0, 2));
  EXPECT_EQ(row.state_bytes(), 12);  // runs of 2, 2 and 1
  row.Update({1.0f, 7.0f, 0.0f, 4.0f, 3.0f}, 1.0f);
  const float norms[] = {1.0f + 25.0f, 1.0f + 8.0f, 1.0f + 9.0f};
  for (int run = 0; run < 3; ++run) EXPECT_EQ(row.state_floats()[run], norms[run]);
  const float gradient[] = {1.0f, 7.0f, 0.0f, 4.0f, 3.0f};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(row.weights()[i], -(1.0f / std::sqrt(norms[i / 2])) * gradient[i]);
}

TEST(AdagradTest, CompressionBeyondTheDimIsOneAccumulator) {
  for (const int run : {3, 4, 2147483647}) {
    RowForTest row("adagrad", {0.0f, 0.0f, 0.0f}, Plain(0.0, 0.0, run));
    EXPECT_EQ(row.state_bytes(), 4);
    row.Update({3.0f, 3.0f, 3.0f}, 0.5f);
    EXPECT_EQ(row.state_floats()[0], 9.0f);
    EXPECT_FLOAT_EQ(row.weights()[2], -0.5f);
  }
}

TEST(DynamicWdAdagradTest, CoupledWithoutDynamicsIsAdagrad) {
  for (const int dim : {1, 5, 16, 33}) {
    RowForTest plain("adagrad", NoiseForTest(dim, 1), Plain(0.1, 0.02));
    RowForTest row("dynamic_wd_adagrad", NoiseForTest(dim, 1), Dynamic(0.02, false, false, false, 1.0));
    EXPECT_EQ(row.state_bytes(), 4 * dim + 8);
    for (uint32_t step = 0; step < 10; ++step) {
      plain.Update(NoiseForTest(dim, step), 0.1f, step * 3);
      row.Update(NoiseForTest(dim, step), 0.1f, step * 3);
    }
    EXPECT_EQ(row.weight_vector(), plain.weight_vector());
    EXPECT_EQ(row.state_step(4 * dim), 27);
  }
}

TEST(DynamicWdAdagradTest, DecoupledDecayStaysOutOfTheAccumulator) {
  RowForTest row("dynamic_wd_adagrad", {2.0f}, Dynamic(0.25, true, false, false, 1.0));
  row.Update({0.0f}, 0.5f);
  EXPECT_EQ(row.state_floats()[0], 0.1f);
  EXPECT_EQ(row.weights()[0], 2.0f - 0.5f * 0.25f * 2.0f);
}

// With a zero gradient and decoupled decay the weight shows the decay that was used: w = 1 - lr * decay.
float DecayUsed(RowForTest& row, int64_t step) {
  row.weights()[0] = 1.0f;
  row.Update({0.0f}, 1.0f, step);
  return 1.0f - row.weights()[0];
}

TEST(DynamicWdAdagradTest, DecayGrowsWithTheRest) {
  RowForTest row("dynamic_wd_adagrad", {1.0f}, Dynamic(0.5, true, true, false, 4.0));
  EXPECT_NEAR(DecayUsed(row, 1000), 0.5 * (1 - std::exp(-0.25)), 1e-6);  // a new row: gap 1
  EXPECT_NEAR(DecayUsed(row, 1008), 0.5 * (1 - std::exp(-2.0)), 1e-6);
  EXPECT_NEAR(DecayUsed(row, 1008), 0.5 * (1 - std::exp(-0.25)), 1e-6);  // the same step again: gap 1
  EXPECT_NEAR(DecayUsed(row, 500), 0.5 * (1 - std::exp(-0.25)), 1e-6);   // an older step: gap 1
  EXPECT_NEAR(DecayUsed(row, int64_t{1} << 62), 0.5, 1e-6);
}

TEST(DynamicWdAdagradTest, FlippedDecayFadesWithTheRest) {
  RowForTest row("dynamic_wd_adagrad", {1.0f}, Dynamic(0.5, true, true, true, 4.0));
  EXPECT_NEAR(DecayUsed(row, 0), 0.5, 1e-6);
  EXPECT_NEAR(DecayUsed(row, 1), 0.5, 1e-6);
  EXPECT_NEAR(DecayUsed(row, 9), 0.5 * std::exp(-7.0 / 4.0), 1e-6);
}

TEST(DynamicWdAdagradTest, StepZeroCountsAsAnUpdate) {
  RowForTest row("dynamic_wd_adagrad", {1.0f}, Dynamic(0.5, true, true, true, 4.0));
  DecayUsed(row, 0);
  EXPECT_NEAR(DecayUsed(row, 5), 0.5 * std::exp(-1.0), 1e-6);
}

}  // namespace
}  // namespace monolith
