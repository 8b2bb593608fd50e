// Shared by FTRL and its group form: parameters, state (norm[dim], zero[dim]) and the accumulation of evidence. Pure
// functions on one locked row.
//
// The caller must skip an update with learning rate 0: the rule divides by it.
#pragma once

#include <algorithm>

#include "base/params.h"
#include "optimizer/row_math.h"

namespace monolith {

struct FtrlRule {
  explicit FtrlRule(const Params& params)
      : initial(params.GetFloat("initial_accumulator_value")),
        beta(params.GetFloat("beta")),
        l1(params.GetFloat("l1_regularization_strength")),
        l2(params.GetFloat("l2_regularization_strength")) {}

  float initial;
  float beta;
  float l1;
  float l2;
};

inline int FtrlStateBytes(int dim) { return 2 * dim * kFloatBytes; }

inline void InitFtrlState(std::byte* state, int dim, const FtrlRule& rule) {
  std::fill_n(Floats(state), dim, rule.initial);
  std::fill_n(Floats(state) + dim, dim, 0.0f);
}

// The evidence z of one dim after a gradient; `root` is the root of the accumulator before it and `next_root` after it.
inline float FtrlEvidence(float zero, float gradient, float weight, float root, float next_root, float learning_rate) {
  const float shift = (next_root - root) / learning_rate;
  return zero + gradient - shift * weight;
}

inline float FtrlDivisor(float root, float learning_rate, const FtrlRule& rule) {
  return AsDivisor(root) + rule.beta + rule.l2 * learning_rate;
}

}  // namespace monolith
