// SGD, Adadelta, momentum, moving average, RMSProp and batch softmax: bits against a scalar transcription, and by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "optimizer/row_for_test.h"

namespace monolith {
namespace {

constexpr float kRate = 0.05f;
constexpr float kDecay = 0.01f;

// Runs `updates` noisy gradients over dims 1..33 and compares each weight with `rule(w, state, g)`, one dim at a time.
template <int kStates, typename Rule>
void ExpectSameBits(const std::string& kind, const ParamMap& params, const Rule& rule) {
  for (int dim = 1; dim <= 33; ++dim) {
    RowForTest row(kind, NoiseForTest(dim, 7), params);
    std::vector<float> weights = row.weight_vector();
    std::vector<std::vector<float>> states(static_cast<size_t>(dim), std::vector<float>(kStates, 0.0f));
    for (uint32_t update = 0; update < 20; ++update) {
      const std::vector<float> gradient = NoiseForTest(dim, 100 + update);
      row.Update(gradient, kRate);
      for (size_t i = 0; i < weights.size(); ++i) rule(weights[i], states[i].data(), gradient[i]);
    }
    ASSERT_EQ(row.weight_vector(), weights) << kind << " of dim " << dim;
    for (int s = 0; s < kStates; ++s) {
      for (int i = 0; i < dim; ++i) ASSERT_EQ(row.state_floats()[s * dim + i], states[static_cast<size_t>(i)][s]);
    }
  }
}

TEST(SgdTest, StepsAgainstTheGradient) {
  ExpectSameBits<0>("sgd", {}, [](float& w, float*, float g) { w = w - kRate * g; });
}

TEST(SgdTest, LearningRateZeroChangesNothing) {
  RowForTest row("sgd", {1.0f, -2.0f}, {});
  row.Update({3.0f, 4.0f}, 0.0f);
  EXPECT_EQ(row.weight_vector(), (std::vector<float>{1.0f, -2.0f}));
}

TEST(MovingAverageTest, MixesSamplesIntoTheWeight) {
  ExpectSameBits<0>("moving_average", {{"momentum", 0.9}},
                    [](float& w, float*, float g) { w = 0.9f * w + (1.0f - 0.9f) * g; });
}

TEST(MomentumTest, CarriesVelocity) {
  ExpectSameBits<1>("momentum", {{"weight_decay_factor", kDecay}, {"momentum", 0.9}, {"use_nesterov", 0}},
                    [](float& w, float* n, float g) {
                      n[0] = 0.9f * n[0] - kRate * (g + kDecay * w);
                      w = w + n[0];
                    });
}

TEST(MomentumTest, NesterovLooksAhead) {
  ExpectSameBits<1>("momentum", {{"weight_decay_factor", kDecay}, {"momentum", 0.9}, {"use_nesterov", 1}},
                    [](float& w, float* n, float g) {
                      const float next = 0.9f * n[0] - kRate * (g + kDecay * w);
                      w = w - 0.9f * n[0] + (1.0f + 0.9f) * next;
                      n[0] = next;
                    });
}

TEST(AdadeltaTest, StepsBySizeOfPastSteps) {
  const ParamMap params = {{"weight_decay_factor", kDecay}, {"averaging_ratio", 0.9}, {"epsilon", 0.01}};
  ExpectSameBits<2>("adadelta", params, [](float& w, float* s, float g) {
    const float h = g + kDecay * w;
    const float a = 0.9f * s[0] + (1.0f - 0.9f) * (h * h);
    const float u = std::sqrt(s[1] + 0.01f) / std::sqrt(a + 0.01f) * h;
    w = w - kRate * u;
    s[1] = 0.9f * s[1] + (1.0f - 0.9f) * (u * u);
    s[0] = a;
  });
}

float RmspropByHand(float& w, float n, float g, double fresh) {
  const double d = static_cast<double>(g) + static_cast<double>(kDecay) * static_cast<double>(w);
  const float next = static_cast<float>(static_cast<double>(0.9f) * static_cast<double>(n) + fresh * (d * d));
  const double root = static_cast<double>(std::sqrt(next));
  w = static_cast<float>(static_cast<double>(w) - static_cast<double>(kRate) / (root + 1.0) * d);
  return next;
}

TEST(RmspropTest, FirstVersionAveragesSquares) {
  ExpectSameBits<1>("rmsprop", {{"weight_decay_factor", kDecay}, {"momentum", 0.9}}, [](float& w, float* n, float g) {
    n[0] = RmspropByHand(w, n[0], g, 1.0 - static_cast<double>(0.9f));
  });
}

TEST(RmspropTest, SecondVersionSumsSquares) {
  ExpectSameBits<1>("rmspropv2", {{"weight_decay_factor", kDecay}, {"momentum", 0.9}},
                    [](float& w, float* n, float g) { n[0] = RmspropByHand(w, n[0], g, 1.0); });
}

TEST(RmspropTest, BothVersionsFollowTheLearningRateOfTheCall) {
  for (const char* kind : {"rmsprop", "rmspropv2"}) {
    RowForTest row(kind, {1.0f}, {{"weight_decay_factor", 0}, {"momentum", 0.9}});
    row.Update({1.0f}, 0.0f);
    EXPECT_EQ(row.weights()[0], 1.0f) << kind;
    row.Update({1.0f}, 1.0f);
    EXPECT_LT(row.weights()[0], 1.0f) << kind;
  }
}

TEST(BatchSoftmaxTest, EstimatesTheStepsBetweenUpdates) {
  RowForTest row("batch_softmax", {1.0f}, {});
  EXPECT_EQ(row.state_step(0), 0);
  row.Update({99.0f}, 0.25f, 8);  // 0.75 * 1 + 0.25 * 8
  EXPECT_EQ(row.weights()[0], 2.75f);
  row.Update({-99.0f}, 0.25f, 12);  // 0.75 * 2.75 + 0.25 * 4
  EXPECT_EQ(row.weights()[0], 3.0625f);
  EXPECT_EQ(row.state_step(0), 12);
}

TEST(BatchSoftmaxTest, KeepsStepsBeyond32Bits) {
  RowForTest row("batch_softmax", {1.0f}, {});
  const int64_t far = (int64_t{1} << 60) + 1;
  row.Update({0.0f}, 0.5f, far);
  EXPECT_EQ(row.state_step(0), far);
  row.Update({0.0f}, 1.0f, far + 3);
  EXPECT_EQ(row.weights()[0], 3.0f);
}

}  // namespace
}  // namespace monolith
