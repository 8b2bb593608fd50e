// The rule of group Adagrad: one accumulator and a group lasso for all weights of a segment.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "optimizer/row_math.h"
#include "optimizer/update_context.h"

namespace monolith {

// State: grad_square_sum.
struct GroupAdagradRule {
  int StateBytes(int) const { return kFloatBytes; }
  void InitState(std::byte* state, int) const { *Floats(state) = initial; }

  void Learn(const UpdateContext& context, float* weights, std::byte* state, const float* gradient, int dim) const {
    if (context.learning_rate == 0.0f) return;  // the rule divides by it
    float& sum = *Floats(state);
    sum = sum + LargestSquare(weights, gradient, dim, decay);
    const float eta = context.learning_rate / (beta + AsDivisor(std::sqrt(sum)));
    if (lasso == 0.0f) {  // the same rule with less rounding and no division by the length, which may be 0
      Descend(weights, gradient, dim, decay, eta);
      return;
    }
    Displace(weights, gradient, dim, decay, eta);
    const double length = std::sqrt(SumOfSquares(weights, dim));
    if (length <= static_cast<double>(lasso)) {
      std::fill_n(weights, dim, 0.0f);
      return;
    }
    Scale(weights, dim, -eta * static_cast<float>((length - static_cast<double>(lasso)) / length));
  }

  float initial;
  float beta;
  float lasso;
  float decay;

 private:
  // The largest square of g + decay * w; NaN if there is one. Compared as integers, which order like non-negative
  // floats, put NaN above all, and need no order of evaluation.
  static float LargestSquare(const float* __restrict weights, const float* __restrict gradient, int dim, float decay) {
    uint32_t largest = 0;
    for (int i = 0; i < dim; ++i) {
      const float direction = gradient[i] + decay * weights[i];
      const uint32_t square = std::bit_cast<uint32_t>(direction * direction) & 0x7fffffffu;
      largest = std::max(largest, square);
    }
    return std::bit_cast<float>(largest);
  }

  static void Descend(float* __restrict weights, const float* __restrict gradient, int dim, float decay, float eta) {
    for (int i = 0; i < dim; ++i) {
      const float direction = gradient[i] + decay * weights[i];
      weights[i] = weights[i] - eta * direction;
    }
  }

  // Replaces each weight w by z = g + decay * w - w / eta.
  static void Displace(float* __restrict weights, const float* __restrict gradient, int dim, float decay, float eta) {
    for (int i = 0; i < dim; ++i) {
      weights[i] = gradient[i] + decay * weights[i] - weights[i] / eta;
    }
  }

  static void Scale(float* weights, int dim, float factor) {
    for (int i = 0; i < dim; ++i) weights[i] = factor * weights[i];
  }
};

}  // namespace monolith
