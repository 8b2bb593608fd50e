// Shared by Adam and AMSGrad: the running means, the two powers stored at the end of a row's state, and the direction
// of the step. The powers count the updates of the row, so bias correction fits rows that are seen rarely. Pure
// functions.
#pragma once

#include <cfloat>
#include <cmath>

#include "base/params.h"

namespace monolith {

struct AdamRule {
  explicit AdamRule(const Params& params)
      : beta1(params.GetFloat("beta1")),
        beta2(params.GetFloat("beta2")),
        decay(params.GetFloat("weight_decay_factor")),
        epsilon(params.GetFloat("epsilon")),
        nesterov(params.GetBool("use_nesterov")) {}

  float beta1;
  float beta2;
  float decay;
  float epsilon;
  bool nesterov;
};

inline float NextMean(float mean, float sample, float fresh) { return mean + (sample - mean) * fresh; }

template <bool kNesterov>
inline float AdamDirection(float sample, float mean, float beta1) {
  return kNesterov ? sample * (1.0f - beta1) + beta1 * mean : mean;
}

// `powers` are {beta1^n, beta2^n} for the n-th update of the row.
inline float AdamStepSize(float learning_rate, const float* powers) {
  return learning_rate * std::sqrt(1.0f - powers[1]) / (1.0f - powers[0]);
}

// A negligible power becomes 0: 1 - power is 1 either way, and subnormal floats are slow on some machines.
inline float NextPower(float power, float beta) {
  const float next = power * beta;
  return next < FLT_MIN ? 0.0f : next;
}

inline void AdvancePowers(float* powers, const AdamRule& rule) {
  powers[0] = NextPower(powers[0], rule.beta1);
  powers[1] = NextPower(powers[1], rule.beta2);
}

inline void InitPowers(float* powers, const AdamRule& rule) {
  powers[0] = rule.beta1;
  powers[1] = rule.beta2;
}

}  // namespace monolith
