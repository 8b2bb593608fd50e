// The inverse of the standard normal distribution function, by Wichura's algorithm AS 241 (Applied Statistics 37,
// 1988), with a relative error near 1e-16. Arithmetic alone, so the same bits everywhere. A pure function; thread-safe.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/elementary.h"

namespace monolith {

namespace normal_quantile_internal {

// Coefficients of ascending powers: one quotient of polynomials for each of three regions.
struct Quotient {
  double numerator[8];
  double denominator[8];
};

inline constexpr Quotient kCentral = {
    {3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
     4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3},
    {1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3, 2.1213794301586595867e4,
     3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3}};
inline constexpr Quotient kTail = {
    {1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
     1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4},
    {1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1, 1.48103976427480074590e-1,
     1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9}};
inline constexpr Quotient kFarTail = {
    {6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
     2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7},
    {1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2, 7.86869131145613259100e-4,
     1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15}};

inline double Evaluate(const Quotient& quotient, double x) {
  double numerator = 0.0;
  double denominator = 0.0;
  for (int i = 7; i >= 0; --i) {
    numerator = numerator * x + quotient.numerator[i];
    denominator = denominator * x + quotient.denominator[i];
  }
  return numerator / denominator;
}

// `offset` is that of the probability from 1/2.
inline bool IsCentral(double offset) { return std::abs(offset) <= 0.425; }
inline double Central(double offset) { return offset * Evaluate(kCentral, 0.180625 - offset * offset); }
inline double Outside(double probability, double offset) {
  // The sign is a bit, not a branch: half of all are negative, in no order that a processor could foresee.
  constexpr uint64_t kSign = uint64_t{1} << 63;
  const double depth = std::sqrt(-Log(std::min(probability, 1.0 - probability)));
  const double size = depth <= 5.0 ? Evaluate(kTail, depth - 1.6) : Evaluate(kFarTail, depth - 5.0);
  return std::bit_cast<double>(std::bit_cast<uint64_t>(size) | (std::bit_cast<uint64_t>(offset) & kSign));
}

}  // namespace normal_quantile_internal

// REQUIRES: 0 < probability < 1.
inline double NormalQuantile(double probability) {
  using namespace normal_quantile_internal;  // NOLINT(build/namespaces): arithmetic of this header
  const double offset = probability - 0.5;
  return IsCentral(offset) ? Central(offset) : Outside(probability, offset);
}

// Replaces `count` probabilities by their quantiles, from eight on faster than single calls. REQUIRES: count <=
// kMostQuantiles.
inline constexpr int kMostQuantiles = 64;
inline void ToNormalQuantiles(double* values, int count) {
  using namespace normal_quantile_internal;  // NOLINT(build/namespaces): arithmetic of this header
  double quantiles[kMostQuantiles];
  for (int i = 0; i < count; ++i) quantiles[i] = Central(values[i] - 0.5);
  // One in seven is outside: they are listed without a branch, which no processor could foresee.
  int outside[kMostQuantiles];
  int num_outside = 0;
  for (int i = 0; i < count; ++i) {
    outside[num_outside] = i;
    num_outside += IsCentral(values[i] - 0.5) ? 0 : 1;
  }
  for (int k = 0; k < num_outside; ++k) {
    const double probability = values[outside[k]];
    quantiles[outside[k]] = Outside(probability, probability - 0.5);
  }
  for (int i = 0; i < count; ++i) values[i] = quantiles[i];
}

}  // namespace monolith
