// Hyperbolic tangent of a double by arithmetic alone: no library call, so every machine gives the same bits, and no
// branch, so a loop over an array vectorises. The relative error is below 1e-12, far below that of the float it is
// rounded to. NaN gives NaN. Pure; thread-safe.
#pragma once

#include <bit>
#include <cstdint>

namespace monolith {

namespace tanh_internal {

// A branch-free choice: compilers turn `?:` around arithmetic into control flow, which keeps loops from vectorising.
inline double Select(bool condition, double yes, double no) {
  const uint64_t mask = 0u - static_cast<uint64_t>(condition);
  return std::bit_cast<double>((std::bit_cast<uint64_t>(yes) & mask) | (std::bit_cast<uint64_t>(no) & ~mask));
}

// e^x. REQUIRES: |x| <= 100, or NaN.
inline double Exp(double x) {
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  constexpr double kLn2High = 0x1.62e42fefa0000p-1;  // trailing zeros: times a small integer it is exact
  constexpr double kLn2Low = 0x1.cf79abc9e3b3ap-40;
  // Adding 1.5 * 2^52 rounds to an integer and leaves that integer in the low bits of the sum.
  constexpr double kRound = 0x1.8p52;
  const double shifted = x * kLog2E + kRound;
  const double n = shifted - kRound;
  const double r = (x - n * kLn2High) - n * kLn2Low;  // |r| <= ln(2) / 2
  double p = 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const uint64_t exponent = (std::bit_cast<uint64_t>(shifted) + 1023) << 52;
  return p * std::bit_cast<double>(exponent);
}

}  // namespace tanh_internal

inline double Tanh(double x) {
  constexpr uint64_t kSign = uint64_t{1} << 63;
  constexpr double kSaturated = 20.0;  // from here on the result is 1 to the last bit
  constexpr double kSmall = 0x1p-6;    // below it 1 - 2 / (e^2x + 1) would lose digits, and the series is exact enough
  const uint64_t sign = std::bit_cast<uint64_t>(x) & kSign;
  const double magnitude = std::bit_cast<double>(std::bit_cast<uint64_t>(x) & ~kSign);
  const double bounded = tanh_internal::Select(magnitude > kSaturated, kSaturated, magnitude);
  const double large = 1.0 - 2.0 / (tanh_internal::Exp(2.0 * bounded) + 1.0);
  const double square = bounded * bounded;
  const double series = bounded * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 - square * (17.0 / 315.0))));
  const double result = tanh_internal::Select(bounded < kSmall, series, large);
  return std::bit_cast<double>(std::bit_cast<uint64_t>(result) | sign);
}

}  // namespace monolith
