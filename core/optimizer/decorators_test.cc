// Delay compensation and stochastic rounding.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/half.h"
#include "base/random.h"
#include "optimizer/row_for_test.h"

namespace monolith {
namespace {

ParamMap Rounding() { return {{"stochastic_rounding", 1}}; }

TEST(DelayCompensationTest, CorrectsTheGradientByTheDistanceToTheLatestWeights) {
  RowForTest row("sgd", {1.0f, 2.0f, 3.0f}, {{"delay_compensation_lambda", 0.5}});
  const float latest[] = {0.0f, 2.0f, 4.0f};
  row.Update({2.0f, 2.0f, -2.0f}, 1.0f, 0, 0, latest);
  // g' = g + 0.5 * g^2 * (w - latest) = 4, 2, -4
  EXPECT_EQ(row.weight_vector(), (std::vector<float>{-3.0f, 0.0f, 7.0f}));
}

TEST(DelayCompensationTest, WithoutLatestWeightsTheBaseRunsAsItIs) {
  RowForTest row("sgd", {1.0f}, {{"delay_compensation_lambda", 0.5}});
  row.Update({2.0f}, 1.0f);
  EXPECT_EQ(row.weights()[0], -1.0f);
}

TEST(DelayCompensationTest, OnlyItUsesTheLatestWeightsWhateverWrapsIt) {
  for (const double lambda : {0.0, 0.5}) {
    for (const double rounds : {0.0, 1.0}) {
      const Params params({{"delay_compensation_lambda", lambda}, {"stochastic_rounding", rounds}});
      EXPECT_EQ(MakeRowOptimizer("sgd", 2, params)->uses_latest(), lambda != 0.0);
    }
  }
}

TEST(DelayCompensationTest, KeepsTheStateOfItsBaseAndForwardsTheStep) {
  RowForTest row("batch_softmax", {1.0f}, {{"delay_compensation_lambda", 0.5}});
  EXPECT_EQ(row.state_bytes(), 8);
  const float latest[] = {0.0f};
  row.Update({1.0f}, 0.5f, 9, 0, latest);
  EXPECT_EQ(row.weights()[0], 5.0f);
  EXPECT_EQ(row.state_step(0), 9);
}

TEST(DelayCompensationTest, WorksForWideSegmentsAfterNarrowOnes) {
  for (const int dim : {3, 500, 20}) {
    RowForTest row("sgd", std::vector<float>(static_cast<size_t>(dim), 1.0f), {{"delay_compensation_lambda", 1.0}});
    const std::vector<float> latest(static_cast<size_t>(dim), 0.0f);
    row.Update(std::vector<float>(static_cast<size_t>(dim), 1.0f), 0.25f, 0, 0, latest.data());
    EXPECT_EQ(row.weight_vector(), std::vector<float>(static_cast<size_t>(dim), 0.5f));
  }
}

TEST(StochasticRoundingTest, ResultsAreHalvesNextToTheWeight) {
  for (const float scale : {1.0f, 1e-3f, 3e-5f, 1e-7f, 3e4f}) {
    for (const int dim : {1, 2, 5, 16, 33, 64, 65, 200}) {
      const std::vector<float> initial = NoiseForTest(dim, 5, scale);
      RowForTest row("sgd", initial, Rounding());
      row.Update(std::vector<float>(initial.size(), 0.0f), 0.0f, 0, 77);
      for (int i = 0; i < dim; ++i) {
        const float result = row.weights()[i];
        const float weight = initial[static_cast<size_t>(i)];
        ASSERT_EQ(HalfToFloat(FloatToHalf(result)), result);
        ASSERT_TRUE(result == HalfToFloat(FloatToHalfTowardNegative(weight)) ||
                    result == HalfToFloat(FloatToHalfTowardPositive(weight)));
      }
    }
  }
}

TEST(StochasticRoundingTest, DrawsDecideAsDocumented) {
  const int dim = 131;  // more than one chunk
  const uint64_t seed = 0x123456789abcdefull;
  const std::vector<float> initial = NoiseForTest(dim, 6);
  RowForTest row("sgd", initial, Rounding());
  row.Update(std::vector<float>(initial.size(), 0.0f), 0.0f, 0, seed);
  for (int i = 0; i < dim; ++i) {
    const double weight = static_cast<double>(initial[static_cast<size_t>(i)]);
    const double down = static_cast<double>(HalfToFloat(FloatToHalfTowardNegative(initial[static_cast<size_t>(i)])));
    const double up = static_cast<double>(HalfToFloat(FloatToHalfTowardPositive(initial[static_cast<size_t>(i)])));
    const double draw = static_cast<double>(CounterRandom(seed).Uniform(static_cast<uint64_t>(i)));
    ASSERT_EQ(static_cast<double>(row.weights()[i]), draw < (weight - down) / (up - down) ? up : down) << i;
  }
}

TEST(StochasticRoundingTest, RepresentableWeightsStay) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> exact = {0.0f, -0.0f, 1.0f, -2.5f, 65504.0f, -65504.0f, 0x1p-24f, -0x1p-24f, inf, -inf};
  RowForTest row("sgd", exact, Rounding());
  for (uint64_t seed = 0; seed < 200; ++seed) {
    row.Update(std::vector<float>(exact.size(), 0.0f), 0.0f, 0, seed);
    ASSERT_EQ(row.weight_vector(), exact);
  }
}

TEST(StochasticRoundingTest, FiniteWeightsBeyondHalfSaturateAndNanStays) {
  RowForTest row("sgd", {65505.0f, -65505.0f, 1e30f, -3e38f, std::numeric_limits<float>::quiet_NaN()}, Rounding());
  for (uint64_t seed = 0; seed < 50; ++seed) {
    row.Update({0.0f, 0.0f, 0.0f, 0.0f, 0.0f}, 0.0f, 0, seed);
    ASSERT_EQ(row.weights()[0], 65504.0f);
    ASSERT_EQ(row.weights()[1], -65504.0f);
    ASSERT_EQ(row.weights()[2], 65504.0f);
    ASSERT_EQ(row.weights()[3], -65504.0f);
    ASSERT_TRUE(std::isnan(row.weights()[4]));
  }
}

TEST(StochasticRoundingTest, MeanIsKeptOver100000Draws) {
  // A weight in the normal range, a negative one, one among the subnormals, one below the smallest.
  for (const float weight : {1.0f + 0.3f * 0x1p-10f, -(2.0f + 0.7f * 0x1p-9f), 5.2f * 0x1p-24f, 0.1f * 0x1p-24f}) {
    const int draws = 100000;
    double sum = 0.0;
    for (uint64_t seed = 0; seed < draws; ++seed) {
      RowForTest row("sgd", {weight}, Rounding());
      row.Update({0.0f}, 0.0f, 0, seed);
      sum += static_cast<double>(row.weights()[0]);
    }
    const double down = static_cast<double>(HalfToFloat(FloatToHalfTowardNegative(weight)));
    const double up = static_cast<double>(HalfToFloat(FloatToHalfTowardPositive(weight)));
    const double five_sigma = 5.0 * 0.5 * (up - down) / std::sqrt(static_cast<double>(draws));
    EXPECT_NEAR(sum / draws, static_cast<double>(weight), five_sigma) << weight;
  }
}

TEST(StochasticRoundingTest, SameSeedSameResultOtherSeedOther) {
  const auto run = [](uint64_t seed) {
    RowForTest row("sgd", NoiseForTest(64, 9), Rounding());
    row.Update(NoiseForTest(64, 8), 0.1f, 3, seed);
    return row.weight_vector();
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST(StochasticRoundingTest, RoundsItsOwnDimsOnlyAndForwardsTheStep) {
  RowForTest row("batch_softmax", {1.0f}, Rounding());  // RowForTest checks the bytes after the state
  row.Update({0.0f}, 0.5f, 9, 1);
  EXPECT_EQ(row.weights()[0], 5.0f);
  EXPECT_EQ(row.state_step(0), 9);
}

}  // namespace
}  // namespace monolith
