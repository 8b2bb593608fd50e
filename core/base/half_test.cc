#include "base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace monolith {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool IsNanHalf(uint32_t half) { return (half & 0x7fffu) > 0x7c00u; }

// The value of a half by the definition of the format, in double.
double Meaning(uint16_t half) {
  const int exponent = (half >> 10) & 0x1f;
  const int mantissa = half & 0x3ff;
  const double sign = (half & 0x8000) ? -1.0 : 1.0;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

// Every point at which a rounding decision changes, and its two neighbours: halves and the midpoints between them.
std::vector<float> DecisionPoints() {
  std::vector<float> points;
  for (uint32_t half = 0; half <= 0x7c00; ++half) {
    const double here = Meaning(static_cast<uint16_t>(half));  // 0x7c00 reads as 65536, the next value
    const double next = Meaning(static_cast<uint16_t>(half + 1));
    for (const double point : {here, (here + next) / 2}) {
      const float exact = static_cast<float>(point);
      for (const float near : {exact, std::nextafter(exact, kInfinity), std::nextafter(exact, -kInfinity)}) {
        points.push_back(near);
        points.push_back(-near);
      }
    }
  }
  for (const float extreme : {1e-45f, 1.17549435e-38f, 3.4e38f, 65504.0f, 65519.996f, 65520.0f, 1e9f}) {
    points.push_back(extreme);
    points.push_back(-extreme);
  }
  return points;
}

TEST(HalfTest, EveryHalfWidensToItsMeaningAndComesBack) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    if (IsNanHalf(half)) {
      EXPECT_TRUE(std::isnan(HalfToFloat(static_cast<uint16_t>(half))));
      EXPECT_EQ(FloatToHalf(HalfToFloat(static_cast<uint16_t>(half))), half | 0x200u);
      continue;
    }
    const float wide = HalfToFloat(static_cast<uint16_t>(half));
    if ((half & 0x7fffu) != 0x7c00u) {
      EXPECT_EQ(static_cast<double>(wide), Meaning(static_cast<uint16_t>(half)));
    }
    EXPECT_EQ(FloatToHalf(wide), half);
    EXPECT_EQ(FloatToHalfTowardNegative(wide), half);
    EXPECT_EQ(FloatToHalfTowardPositive(wide), half);
  }
}

TEST(HalfTest, NarrowingTakesTheNearestAndOnTiesTheEven) {
  for (const float value : DecisionPoints()) {
    const uint16_t nearest = FloatToHalf(value);
    ASSERT_EQ(nearest >> 15, std::signbit(value)) << value;
    const uint16_t magnitude = nearest & 0x7fff;
    const double distance = std::abs(Meaning(nearest) - static_cast<double>(value));
    if (std::abs(value) >= 65520.0f) {
      ASSERT_EQ(magnitude, 0x7c00) << value;
      continue;
    }
    for (const int step : {-1, 1}) {
      if (magnitude == 0 && step == -1) continue;
      const double other = std::abs(Meaning(static_cast<uint16_t>(nearest + step)) - static_cast<double>(value));
      ASSERT_LE(distance, other) << value;
      ASSERT_TRUE(distance < other || magnitude % 2 == 0) << value;
    }
  }
}

TEST(HalfTest, DirectedNarrowingBracketsTheValueTightly) {
  for (const float value : DecisionPoints()) {
    const float down = HalfToFloat(FloatToHalfTowardNegative(value));
    const float up = HalfToFloat(FloatToHalfTowardPositive(value));
    ASSERT_LE(down, value);
    ASSERT_GE(up, value);
    const bool representable = HalfToFloat(FloatToHalf(value)) == value;
    ASSERT_EQ(down == up, representable) << value;
    if (!representable) {
      const uint16_t toward_zero = value > 0 ? FloatToHalfTowardNegative(value) : FloatToHalfTowardPositive(value);
      const uint16_t away = value > 0 ? FloatToHalfTowardPositive(value) : FloatToHalfTowardNegative(value);
      ASSERT_EQ(toward_zero + 1, away) << value;
    }
  }
}

TEST(HalfTest, InfinityAndNanSurviveEveryDirection) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto convert : {FloatToHalf, FloatToHalfTowardNegative, FloatToHalfTowardPositive}) {
    EXPECT_EQ(convert(kInfinity), 0x7c00);
    EXPECT_EQ(convert(-kInfinity), 0xfc00);
    EXPECT_TRUE(IsNanHalf(convert(nan)));
    EXPECT_TRUE(IsNanHalf(convert(std::bit_cast<float>(0x7f800001u))));  // its payload does not fit a half
    EXPECT_EQ(convert(0.0f), 0x0000);
    EXPECT_EQ(convert(-0.0f), 0x8000);
  }
}

#if defined(__ARM_FP16_FORMAT_IEEE)
TEST(HalfTest, AgreesWithTheHardware) {
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 1031) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    const uint16_t expected = std::bit_cast<uint16_t>(static_cast<__fp16>(value));
    ASSERT_EQ(FloatToHalf(value), expected) << bits;
  }
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const float expected = static_cast<float>(std::bit_cast<__fp16>(static_cast<uint16_t>(half)));
    ASSERT_EQ(std::bit_cast<uint32_t>(HalfToFloat(static_cast<uint16_t>(half))), std::bit_cast<uint32_t>(expected));
  }
}
#endif

TEST(Bf16Test, EveryBf16ComesBackAndTiesGoToEven) {
  for (uint32_t bf16 = 0; bf16 < 0x10000; ++bf16) {
    const float wide = Bf16ToFloat(static_cast<uint16_t>(bf16));
    if ((bf16 & 0x7fffu) > 0x7f80u) {
      EXPECT_TRUE(std::isnan(wide));
      EXPECT_EQ(FloatToBf16(wide), bf16 | 0x40u);
      continue;
    }
    EXPECT_EQ(FloatToBf16(wide), bf16);
    if ((bf16 & 0x7fffu) == 0x7f80u) continue;
    const uint32_t tie = (bf16 << 16) | 0x8000u;
    EXPECT_EQ(FloatToBf16(std::bit_cast<float>(tie - 1)), bf16);
    EXPECT_EQ(FloatToBf16(std::bit_cast<float>(tie)), (bf16 & 1u) ? bf16 + 1 : bf16);
    EXPECT_EQ(FloatToBf16(std::bit_cast<float>(tie + 1)), bf16 + 1);
  }
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace monolith
