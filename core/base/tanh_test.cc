#include "base/tanh.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace monolith {
namespace {

TEST(TanhTest, AgreesWithTheLibraryFarBelowAFloatsPrecision) {
  for (double magnitude = 1e-300; magnitude < 1e300; magnitude *= 1.0137) {
    for (const double x : {magnitude, -magnitude}) {
      const double expected = std::tanh(x);
      EXPECT_LE(std::abs(Tanh(x) - expected), 1e-12 * std::abs(expected)) << x;
    }
  }
}

TEST(TanhTest, IsContinuousWhereTheSeriesHandsOver) {
  for (const double edge : {0x1p-6, 20.0}) {
    const double below = std::nextafter(edge, 0.0);
    EXPECT_NEAR(Tanh(below), Tanh(edge), 1e-14) << edge;
    EXPECT_NEAR(Tanh(edge), std::tanh(edge), 1e-14) << edge;
  }
}

TEST(TanhTest, KeepsSignedZeroNanAndInfinity) {
  EXPECT_EQ(Tanh(0.0), 0.0);
  EXPECT_TRUE(std::signbit(Tanh(-0.0)));
  EXPECT_EQ(Tanh(std::numeric_limits<double>::infinity()), 1.0);
  EXPECT_EQ(Tanh(-std::numeric_limits<double>::infinity()), -1.0);
  EXPECT_TRUE(std::isnan(Tanh(std::numeric_limits<double>::quiet_NaN())));
}

}  // namespace
}  // namespace monolith
