// Logarithm and exponential of a double by arithmetic alone: no library call, so every machine and every GPU gives the
// same bits. The error is below 0.9 units in the last place: the worst of 10^8 arguments had 0.84 (Log, near 1.4), 0.58
// (Exp) and 0.78 (Expm1). Zeros, subnormals, infinities and NaN give what IEEE 754 recommends. Pure; thread-safe.
//
// Each argument is reduced by a power of two (Cody and Waite: ln 2 in two parts, of which multiples of the first are
// exact), and a power series gives the rest. The sums keep what their roundings lose. Series are added up in pairs
// (Estrin), so that few additions wait for each other.
#pragma once

#include <bit>
#include <cstdint>

namespace monolith {

namespace elementary_internal {

inline constexpr double kLn2High = 0x1.62e42fefa0000p-1;  // 37 bits: times an exponent it is exact
inline constexpr double kLn2Low = 0x1.cf79abc9e3b3ap-40;

// a + b + c + d, where only the last rounding matters. REQUIRES: a is 0 or |a| >= |b|; |b| >= |c|, or both are
// negligible next to a; d is negligible next to the sum, except for its rounding.
inline double Sum(double a, double b, double c, double d) {
  const double tail = b + c;
  const double lost_below = c - (tail - b);
  const double sum = a + tail;
  const double lost = tail - (sum - a);
  return sum + (lost + (lost_below + d));
}

// 2^n. REQUIRES: -1022 <= n <= 1023; any other n gives some number.
inline double PowerOfTwo(int64_t n) { return std::bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52); }

// x * 2^n in two steps, since 2^n itself may be out of range; the first is exact. REQUIRES: |n| <= 2000, or x is NaN.
inline double Scale(double x, int64_t n) {
  const int64_t half = n >> 1;
  return x * PowerOfTwo(half) * PowerOfTwo(n - half);
}

// x = n * ln 2 + r + tail with |r| <= 0.35, |tail| below half a unit of r. REQUIRES: |x| <= 1000, or NaN.
struct Reduced {
  int64_t n;
  double r;
  double tail;
};
inline Reduced Reduce(double x) {
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  // Adding 1.5 * 2^52 rounds to an integer and leaves that integer in the low bits of the sum.
  constexpr double kRound = 0x1.8p52;
  const double shifted = x * kLog2E + kRound;
  const double n = shifted - kRound;
  const double nearly = x - n * kLn2High;
  const double low = n * kLn2Low;
  const double r = nearly - low;
  return {static_cast<int32_t>(std::bit_cast<uint64_t>(shifted)), r, (nearly - r) - low};
}

// e^r - 1 - r by its series up to r^14 / 14!. REQUIRES: |r| <= 0.35.
inline double ExpSeries(double r) {
  const double r2 = r * r, r4 = r2 * r2;
  const double first = (1.0 / 6 + r * (1.0 / 24)) + r2 * (1.0 / 120 + r * (1.0 / 720));
  const double second = (1.0 / 5040 + r * (1.0 / 40320)) + r2 * (1.0 / 362880 + r * (1.0 / 3628800));
  const double third = (1.0 / 39916800 + r * (1.0 / 479001600)) + r2 * (1.0 / 6227020800 + r * (1.0 / 87178291200));
  return 0.5 * r2 + r2 * r * (first + r4 * (second + r4 * third));
}

// 2 artanh(s) / s - 2 by its series up to 2 s^20 / 21, for ln(1 + f) = 2 artanh(s) with s = f / (2 + f). REQUIRES: |s|
// <= 0.172.
inline double LogSeries(double s) {
  const double z = s * s, z2 = z * z, z4 = z2 * z2;
  const double first = (2.0 / 3 + z * (2.0 / 5)) + z2 * (2.0 / 7 + z * (2.0 / 9));
  const double second = (2.0 / 11 + z * (2.0 / 13)) + z2 * (2.0 / 15 + z * (2.0 / 17));
  const double third = 2.0 / 19 + z * (2.0 / 21);
  return z * (first + z4 * (second + z4 * third));
}

}  // namespace elementary_internal

// The natural logarithm; NaN below zero, minus infinity for zeros.
inline double Log(double x) {
  using namespace elementary_internal;  // NOLINT(build/namespaces): arithmetic of this header
  constexpr uint64_t kSmallestNormal = 0x0010000000000000u;
  constexpr uint64_t kInfinity = 0x7ff0000000000000u, kNan = 0x7ff8000000000000u;
  constexpr uint64_t kRootOfHalf = 0x3fe6a09e667f3bcdu;
  uint64_t bits = std::bit_cast<uint64_t>(x);
  int64_t scaled = 0;
  if (bits - kSmallestNormal >= kInfinity - kSmallestNormal) [[unlikely]] {
    if (x == 0.0) return -std::bit_cast<double>(kInfinity);
    if (!(x > 0.0)) return std::bit_cast<double>(kNan);
    if (bits == kInfinity) return x;
    scaled = 54;  // x is subnormal
    bits = std::bit_cast<uint64_t>(x * 0x1p54);
  }
  // x = 2^n * (1 + f) with 1 + f between the roots of 1/2 and 2.
  const int64_t n = static_cast<int64_t>(bits - kRootOfHalf) >> 52;
  const double f = std::bit_cast<double>(bits - (static_cast<uint64_t>(n) << 52)) - 1.0;
  const double s = f / (2.0 + f);
  const double half_square = 0.5 * f * f;
  const double rest = s * (half_square + LogSeries(s)) - half_square;  // ln(1 + f) - f
  const double exponent = static_cast<double>(n - scaled);
  return Sum(exponent * kLn2High, f, rest, exponent * kLn2Low);
}

// e^x.
inline double Exp(double x) {
  using namespace elementary_internal;  // NOLINT(build/namespaces): arithmetic of this header
  // Beyond these the result is infinite, or 0, and so it is at them.
  const double bounded = x > 710.0 ? 710.0 : x < -746.0 ? -746.0 : x;
  const Reduced reduced = Reduce(bounded);
  const double by_tail = reduced.tail + reduced.tail * reduced.r;
  return Scale(Sum(1.0, reduced.r, ExpSeries(reduced.r), by_tail), reduced.n);
}

// e^x - 1, without the cancellation of that formula near 0.
inline double Expm1(double x) {
  using namespace elementary_internal;        // NOLINT(build/namespaces): arithmetic of this header
  if (x > -0x1p-54 && x < 0x1p-54) return x;  // x^2 / 2 is below half a unit; a zero keeps its sign
  // From -38 on the result is -1 to the last bit.
  const double bounded = x > 710.0 ? 710.0 : x < -40.0 ? -40.0 : x;
  const Reduced reduced = Reduce(bounded);
  // 2^n * (e^r - 2^-n): above 2^64 the one that is subtracted has no weight.
  const double one = PowerOfTwo(reduced.n < 64 ? -reduced.n : -64);
  const double base = 1.0 - one;
  const double lost = (1.0 - base) - one;
  const double by_tail = reduced.tail + reduced.tail * reduced.r;
  return Scale(Sum(base, reduced.r, ExpSeries(reduced.r), by_tail + lost), reduced.n);
}

}  // namespace monolith
