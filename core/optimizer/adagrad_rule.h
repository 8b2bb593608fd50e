// Adagrad, and what its form with dynamic weight decay shares with it.
//
// A run is a sequence of consecutive dims that share one accumulator (hessian compression); without compression the
// rule is elementwise. Decay is coupled (added to the gradient, and so to the accumulator) or decoupled (it shrinks the
// weight directly).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "optimizer/row_math.h"
#include "optimizer/row_rule.h"

namespace monolith {

struct AdagradStep {
  float learning_rate;
  float decay;
};

inline int AdagradAccumulators(int dim, int run) { return dim / run + (dim % run != 0); }

template <bool kDecoupled>
inline float AdagradDirection(float gradient, float weight, float decay) {
  return kDecoupled ? gradient : gradient + decay * weight;
}

template <bool kDecoupled>
inline float AdagradWeight(float weight, float direction, float scale, const AdagradStep& step) {
  if constexpr (kDecoupled) return weight - (scale * direction + step.learning_rate * step.decay * weight);
  return weight - scale * direction;
}

template <bool kDecoupled>
inline void LearnAdagrad(const AdagradStep& step, float gradient, float& weight, float& norm) {
  const float direction = AdagradDirection<kDecoupled>(gradient, weight, step.decay);
  norm = norm + direction * direction;
  const float scale = step.learning_rate / AsDivisor(std::sqrt(norm));
  weight = AdagradWeight<kDecoupled>(weight, direction, scale, step);
}

template <bool kDecoupled>
void LearnAdagradRuns(const AdagradStep step, float* __restrict weights, float* __restrict norms,
                      const float* __restrict gradient, int dim, int run) {
  for (int begin = 0, k = 0; begin < dim; ++k) {
    const int end = begin + std::min(run, dim - begin);
    double sum = 0.0;
    for (int i = begin; i < end; ++i) {
      const double direction = static_cast<double>(AdagradDirection<kDecoupled>(gradient[i], weights[i], step.decay));
      sum += direction * direction;
    }
    norms[k] = norms[k] + static_cast<float>(sum / (end - begin));
    const float scale = step.learning_rate / AsDivisor(std::sqrt(norms[k]));
    for (int i = begin; i < end; ++i) {
      const float direction = AdagradDirection<kDecoupled>(gradient[i], weights[i], step.decay);
      weights[i] = AdagradWeight<kDecoupled>(weights[i], direction, scale, step);
    }
    begin = end;
  }
}

// State: norm[dim].
struct AdagradRule : ElementwiseRule {
  static constexpr int kMembers = 1;

  float InitialMember(int) const { return initial; }
  AdagradStep Begin(const UpdateContext& context, const std::byte*) const { return {context.learning_rate, decay}; }
  void Learn(const AdagradStep& step, float gradient, float& weight, float& norm) const {
    LearnAdagrad<false>(step, gradient, weight, norm);
  }

  float initial;
  float decay;
};

// State: norm[ceil(dim / run)].
struct AdagradRunRule {
  int StateBytes(int dim) const { return AdagradAccumulators(dim, run) * kFloatBytes; }
  void InitState(std::byte* state, int dim) const {
    std::fill_n(Floats(state), AdagradAccumulators(dim, run), initial);
  }
  void Learn(const UpdateContext& context, float* weights, std::byte* state, const float* gradient, int dim) const {
    LearnAdagradRuns<false>({context.learning_rate, decay}, weights, Floats(state), gradient, dim, run);
  }

  float initial;
  float decay;
  int run;
};

}  // namespace monolith
