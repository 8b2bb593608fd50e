#include "base/elementary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "base/hash.h"
#include "base/random.h"

namespace monolith {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kSmallest = std::numeric_limits<double>::denorm_min();
constexpr double kLargest = std::numeric_limits<double>::max();

// One function, and that of the library with more digits.
struct Function {
  const char* name;
  double (*ours)(double);
  long double (*exact)(long double);
};
const Function kLog = {"Log", Log, std::log};
const Function kExp = {"Exp", Exp, std::exp};
const Function kExpm1 = {"Expm1", Expm1, std::expm1};

// Distance in units of the last place of the exact result.
double ErrorAt(const Function& function, double x) {
  const long double exact = function.exact(static_cast<long double>(x));
  const double size = std::abs(static_cast<double>(exact));
  const double unit = size < 0x1p-1021 ? kSmallest : std::ldexp(1.0, std::ilogb(size) - 52);
  return static_cast<double>(std::abs(static_cast<long double>(function.ours(x)) - exact) / unit);
}

class Worst {
 public:
  explicit Worst(const Function& function) : function_(function) {}
  void Try(double x) {
    const double error = ErrorAt(function_, x);
    ASSERT_TRUE(error < 1e9) << function_.name << "(" << x << ") is " << function_.ours(x);
    if (error > error_) argument_ = x, error_ = error;
  }
  void ExpectBelow(double limit) const { EXPECT_LT(error_, limit) << function_.name << "(" << argument_ << ")"; }

 private:
  const Function& function_;
  double argument_ = 0.0;
  double error_ = 0.0;
};

// The centres of `count` cells between the ends, each moved by a random part of its cell.
template <typename Visit>
void ForDense(double low, double high, int count, const Visit& visit) {
  const CounterRandom random(HashId(count));
  for (int i = 0; i < count; ++i) {
    const double draw = static_cast<double>(random.Bits(static_cast<uint64_t>(i)) >> 11) * 0x1p-53;
    visit(low + (high - low) * ((i + draw) / count));
  }
}

constexpr int kMany = 400'000;
constexpr double kLimit = 0.9;

TEST(LogTest, ErrorIsBelowOneUnitAtNumbersOfEverySize) {
  Worst worst(kLog);
  const CounterRandom random(1);
  for (uint64_t i = 0; i < 2 * kMany; ++i) {
    worst.Try(std::bit_cast<double>(random.Bits(i) >> 2));  // of 0 to 2, with every exponent, subnormal ones as well
    worst.Try(std::bit_cast<double>(random.Bits(i) % 0x7ff0000000000000u));
  }
  worst.ExpectBelow(kLimit);
}

TEST(LogTest, ErrorIsBelowOneUnitNearOneAndInTheTailsOfADistribution) {
  Worst worst(kLog);
  ForDense(0.5, 2.0, kMany, [&](double x) { worst.Try(x); });
  ForDense(0.0, 0.075, kMany, [&](double x) { worst.Try(x); });
  for (int i = 1; i < 2000; ++i) {
    worst.Try(1.0 + i * 0x1p-52);
    worst.Try(1.0 - i * 0x1p-53);
  }
  worst.ExpectBelow(kLimit);
}

TEST(LogTest, EdgesAreExact) {
  EXPECT_EQ(Log(1.0), 0.0);
  EXPECT_FALSE(std::signbit(Log(1.0)));
  EXPECT_EQ(Log(0.0), -kInfinity);
  EXPECT_EQ(Log(-0.0), -kInfinity);
  EXPECT_EQ(Log(kInfinity), kInfinity);
  for (const double x : {-1.0, -kSmallest, -kInfinity, kNan, -kNan}) EXPECT_TRUE(std::isnan(Log(x))) << x;
  for (int n = -1074; n <= 1023; ++n) EXPECT_LE(ErrorAt(kLog, std::ldexp(1.0, n)), 0.5001) << n;
  EXPECT_EQ(Log(kLargest), 0x1.62e42fefa39efp+9);
}

TEST(LogTest, NeverFallsFromOneNumberToTheNext) {
  for (const double start : {kSmallest, 1e-300, 0x1p-53, 0.075, 0.70710678, 1.0 - 1e-13, 1.41421356, 2.0, 1e300}) {
    double x = start;
    for (int i = 0; i < 20'000; ++i) {
      const double next = std::nextafter(x, kInfinity);
      ASSERT_LE(Log(x), Log(next)) << x;
      x = next;
    }
  }
}

TEST(ExpTest, ErrorIsBelowOneUnitOverItsWholeRange) {
  Worst worst(kExp);
  ForDense(-746.0, 710.0, 2 * kMany, [&](double x) {
    if (x < 0x1.62e42fefa39efp+9) worst.Try(x);
  });
  ForDense(-1.1, 1.1, kMany, [&](double x) { worst.Try(x); });
  for (int power = -1074; power < 0; ++power) {
    worst.Try(std::ldexp(1.0, power));
    worst.Try(-std::ldexp(1.0, power));
  }
  worst.ExpectBelow(kLimit);
}

TEST(ExpTest, EdgesAreExact) {
  EXPECT_EQ(Exp(0.0), 1.0);
  EXPECT_EQ(Exp(-0.0), 1.0);
  EXPECT_EQ(Exp(kInfinity), kInfinity);
  EXPECT_EQ(Exp(-kInfinity), 0.0);
  EXPECT_FALSE(std::signbit(Exp(-kInfinity)));
  EXPECT_TRUE(std::isnan(Exp(kNan)));
  EXPECT_TRUE(std::isnan(Exp(-kNan)));
  EXPECT_LE(Exp(0x1.62e42fefa39efp+9), kLargest);  // the largest argument with a finite result
  EXPECT_EQ(Exp(std::nextafter(0x1.62e42fefa39efp+9, 1e9)), kInfinity);
  for (const double x : {710.0, 1e5, kLargest}) EXPECT_EQ(Exp(x), kInfinity) << x;
  EXPECT_EQ(Exp(-0x1.74910d52d3051p+9), kSmallest);  // the smallest one whose result is not 0
  EXPECT_EQ(Exp(std::nextafter(-0x1.74910d52d3051p+9, -1e9)), 0.0);
  for (const double x : {-746.0, -1e5, -kLargest}) EXPECT_EQ(Exp(x), 0.0) << x;
}

TEST(Expm1Test, ErrorIsBelowOneUnitOverItsWholeRange) {
  Worst worst(kExpm1);
  ForDense(-60.0, 60.0, 2 * kMany, [&](double x) { worst.Try(x); });
  ForDense(-1.5, 1.5, 2 * kMany, [&](double x) { worst.Try(x); });
  ForDense(40.0, 709.0, kMany, [&](double x) { worst.Try(x); });
  const CounterRandom random(2);
  for (uint64_t i = 0; i < kMany; ++i) {
    const double size = std::bit_cast<double>(random.Bits(i) % 0x4000000000000000u);  // below 2, of every exponent
    worst.Try(size);
    worst.Try(-size);
  }
  worst.ExpectBelow(kLimit);
}

TEST(Expm1Test, EdgesAreExact) {
  EXPECT_EQ(Expm1(0.0), 0.0);
  EXPECT_FALSE(std::signbit(Expm1(0.0)));
  EXPECT_TRUE(std::signbit(Expm1(-0.0)));
  EXPECT_EQ(Expm1(kSmallest), kSmallest);
  EXPECT_EQ(Expm1(-0x1p-1000), -0x1p-1000);
  EXPECT_EQ(Expm1(kInfinity), kInfinity);
  EXPECT_EQ(Expm1(kLargest), kInfinity);
  EXPECT_TRUE(std::isnan(Expm1(kNan)));
  for (const double x : {-40.0, -1e5, -kLargest, -kInfinity}) EXPECT_EQ(Expm1(x), -1.0) << x;
  EXPECT_LE(Expm1(0x1.62e42fefa39efp+9), kLargest);
  EXPECT_EQ(Expm1(std::nextafter(0x1.62e42fefa39efp+9, 1e9)), kInfinity);
}

TEST(Expm1Test, IsMonotonicWhereOneFormulaFollowsAnother) {
  for (const double edge : {-0x1p-54, 0x1p-54, -40.0, 0.5 * M_LN2, -0.5 * M_LN2, 1.5 * M_LN2, 63.5 * M_LN2}) {
    double x = edge - 2000 * std::abs(std::nextafter(edge, 0.0) - edge);
    for (int i = 0; i < 4000; ++i) {
      const double next = std::nextafter(x, kInfinity);
      ASSERT_LE(Expm1(x), Expm1(next)) << x;
      x = next;
    }
  }
}

// The number is stored: machines of another architecture, with other compilers, must find the same one.
TEST(ElementaryTest, BitsAreThoseThatWereStored) {
  uint64_t digest = 0;
  const CounterRandom random(3);
  const auto add = [&](double result) { digest = Combine(digest, std::bit_cast<uint64_t>(result)); };
  for (uint64_t i = 0; i < 100'000; ++i) {
    const double anything = std::bit_cast<double>(random.Bits(i) % 0x7ff0000000000000u);
    const double draw = static_cast<double>(random.Bits(i) >> 11) * 0x1p-53;
    add(Log(anything));
    add(Exp(1500.0 * draw - 760.0));
    add(Expm1(100.0 * draw - 50.0));
    add(Expm1(draw - 0.5));
  }
  EXPECT_EQ(digest, 16193603802891414027u);
}

}  // namespace
}  // namespace monolith
