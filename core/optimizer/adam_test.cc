#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "optimizer/row_for_test.h"

namespace monolith {
namespace {

ParamMap AdamParams(bool nesterov, double decay = 0.0, double epsilon = 0.01) {
  return {{"beta1", 0.9},
          {"beta2", 0.99},
          {"weight_decay_factor", decay},
          {"epsilon", epsilon},
          {"use_nesterov", nesterov}};
}

struct ScalarAdam {
  float m = 0.0f, v = 0.0f, vhat = 0.0f, power1 = 0.9f, power2 = 0.99f;

  float Next(float w, float g, float lr, bool nesterov, bool amsgrad) {
    const float alpha = lr * std::sqrt(1.0f - power2) / (1.0f - power1);
    const float h = g + 0.01f * w;
    m = m + (h - m) * (1.0f - 0.9f);
    v = v + (h * h - v) * (1.0f - 0.99f);
    vhat = std::max(vhat, v);
    const float direction = nesterov ? h * (1.0f - 0.9f) + 0.9f * m : m;
    power1 *= 0.9f;
    power2 *= 0.99f;
    return w - alpha * direction / (std::sqrt(amsgrad ? vhat : v) + 0.01f);
  }
};

void ExpectScalarRule(const std::string& kind, bool nesterov) {
  const bool amsgrad = kind == "amsgrad";
  for (int dim = 1; dim <= 33; ++dim) {
    RowForTest row(kind, NoiseForTest(dim, 3), AdamParams(nesterov, 0.01));
    std::vector<float> weights = row.weight_vector();
    std::vector<ScalarAdam> scalars(weights.size());
    for (uint32_t update = 0; update < 20; ++update) {
      const std::vector<float> gradient = NoiseForTest(dim, 10 + update, update < 10 ? 1.0f : 0.01f);
      row.Update(gradient, 0.05f);
      for (size_t i = 0; i < weights.size(); ++i) {
        weights[i] = scalars[i].Next(weights[i], gradient[i], 0.05f, nesterov, amsgrad);
      }
    }
    ASSERT_EQ(row.weight_vector(), weights) << kind << " of dim " << dim;
    const float* powers = row.state_floats() + (amsgrad ? 3 : 2) * dim;
    ASSERT_EQ(powers[0], scalars[0].power1);
    ASSERT_EQ(powers[1], scalars[0].power2);
  }
}

TEST(AdamTest, FollowsTheScalarRule) { ExpectScalarRule("adam", false); }
TEST(AdamTest, FollowsTheScalarRuleWithNesterov) { ExpectScalarRule("adam", true); }
TEST(AmsgradTest, FollowsTheScalarRule) { ExpectScalarRule("amsgrad", false); }
TEST(AmsgradTest, FollowsTheScalarRuleWithNesterov) { ExpectScalarRule("amsgrad", true); }

TEST(AdamTest, FirstStepIsFullyCorrected) {
  for (const char* kind : {"adam", "amsgrad"}) {
    RowForTest row(kind, {0.0f}, AdamParams(false, 0.0, 1e-8));
    row.Update({123.0f}, 0.5f);
    // Adam: m / sqrt(v) = g (1 - b1) / (|g| sqrt(1 - b2)), times sqrt(1 - b2) / (1 - b1): one learning rate.
    EXPECT_NEAR(row.weights()[0], -0.5f, 1e-4f) << kind;
  }
}

TEST(AdamTest, PowersEndAtZeroNotAtSubnormals) {
  RowForTest row("adam", {0.0f}, AdamParams(false));
  for (int update = 0; update < 12000; ++update) {
    row.Update({1.0f}, 0.0f);
    for (const int power : {2, 3})
      EXPECT_TRUE(row.state_floats()[power] == 0.0f || std::isnormal(row.state_floats()[power]));
  }
  EXPECT_EQ(row.state_floats()[2], 0.0f);
  EXPECT_EQ(row.state_floats()[3], 0.0f);
}

TEST(AdamTest, ZeroGradientOnANewRowLeavesTheWeight) {
  for (const char* kind : {"adam", "amsgrad"}) {
    RowForTest row(kind, {0.25f}, AdamParams(true));
    row.Update({0.0f}, 0.1f);
    EXPECT_EQ(row.weights()[0], 0.25f) << kind;
  }
}

TEST(AmsgradTest, RemembersTheLargestVariance) {
  RowForTest row("amsgrad", {0.0f}, AdamParams(false));
  row.Update({100.0f}, 0.1f);
  const float peak = row.state_floats()[2];
  for (int update = 0; update < 100; ++update) row.Update({0.0f}, 0.1f);
  EXPECT_EQ(row.state_floats()[2], peak);
  EXPECT_LT(row.state_floats()[1], peak);
}

}  // namespace
}  // namespace monolith
