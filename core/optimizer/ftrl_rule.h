// FTRL, and what its group form shares with it.
#pragma once

#include <cmath>

#include "optimizer/row_math.h"
#include "optimizer/row_rule.h"

namespace monolith {

// REQUIRES of all functions: a learning rate other than 0, by which the rule divides.
struct FtrlParameters {
  // The evidence z of one dim after a gradient; `root` is the root of the accumulator before it and `next_root` after
  // it.
  static float NextEvidence(float zero, float gradient, float weight, float root, float next_root,
                            float learning_rate) {
    const float shift = (next_root - root) / learning_rate;
    return zero + gradient - shift * weight;
  }

  float Divisor(float root, float learning_rate) const { return AsDivisor(root) + beta + l2 * learning_rate; }

  float initial;
  float beta;
  float l1;
  float l2;
};

// State: norm[dim], zero[dim].
struct FtrlRule : ElementwiseRule, FtrlParameters {
  static constexpr int kMembers = 2;
  static constexpr bool kDividesByRate = true;

  float InitialMember(int member) const { return member == 0 ? initial : 0.0f; }
  void Learn(float learning_rate, float gradient, float& weight, float& norm, float& zero) const {
    const float next_norm = norm + gradient * gradient;
    const float root = std::sqrt(next_norm);
    zero = NextEvidence(zero, gradient, weight, std::sqrt(norm), root, learning_rate);
    norm = next_norm;
    // Written so that a NaN stays visible and does not become a weight of 0.
    const float beyond = Choose(std::abs(zero) <= l1, 0.0f, std::copysign(l1, zero) - zero);
    weight = learning_rate * beyond / Divisor(root, learning_rate);
  }
};

}  // namespace monolith
