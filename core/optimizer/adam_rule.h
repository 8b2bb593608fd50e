// Adam, and what AMSGrad shares with it: the running means, the two powers stored at the end of a segment's state, and
// the direction of the step. The powers count the updates of the row, so bias correction fits rows that are seen
// rarely.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstddef>

#include "optimizer/row_math.h"
#include "optimizer/row_rule.h"

namespace monolith {

// Scalars: {beta1^n, beta2^n} for the n-th update of the row.
struct AdamMoments : ElementwiseRule {
  static constexpr int kScalarBytes = 2 * kFloatBytes;

  void InitScalars(std::byte* scalars) const {
    float* powers = Floats(scalars);
    powers[0] = beta1;
    powers[1] = beta2;
  }

  // The length of the step.
  float Begin(const UpdateContext& context, const std::byte* scalars) const {
    const float* powers = Floats(scalars);
    return context.learning_rate * std::sqrt(1.0f - powers[1]) / (1.0f - powers[0]);
  }

  // Adds a gradient to the running means.
  template <bool kNesterov>
  float NextDirection(float gradient, float weight, float& mean, float& square) const {
    const float sample = gradient + decay * weight;
    mean = NextMean(mean, sample, 1.0f - beta1);
    square = NextMean(square, sample * sample, 1.0f - beta2);
    return kNesterov ? sample * (1.0f - beta1) + beta1 * mean : mean;
  }

  void End(const UpdateContext&, std::byte* scalars) const {
    float* powers = Floats(scalars);
    powers[0] = NextPower(powers[0], beta1);
    powers[1] = NextPower(powers[1], beta2);
  }

  static float NextMean(float mean, float sample, float fresh) { return mean + (sample - mean) * fresh; }

  // A negligible power becomes 0: 1 - power is 1 either way, and subnormal floats are slow on some machines.
  static float NextPower(float power, float beta) {
    const float next = power * beta;
    return next < FLT_MIN ? 0.0f : next;
  }

  float beta1;
  float beta2;
  float decay;
  float epsilon;
};

// State: m[dim], v[dim], beta1_power, beta2_power.
template <bool kNesterov>
struct AdamRule : AdamMoments {
  static constexpr int kMembers = 2;

  void Learn(float step_size, float gradient, float& weight, float& mean, float& square) const {
    const float direction = NextDirection<kNesterov>(gradient, weight, mean, square);
    weight = weight - step_size * direction / (std::sqrt(square) + epsilon);
  }
};

}  // namespace monolith
