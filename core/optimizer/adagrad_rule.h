// Adagrad's rule, shared by its plain and its dynamic-weight-decay form. Pure functions on one locked row.
//
// A run is a sequence of consecutive dims that share one accumulator (hessian compression); `run` = 1 is the plain
// rule. Decay is coupled (added to the gradient, and so to the accumulator) or decoupled (it shrinks the weight
// directly).
#pragma once

#include <algorithm>
#include <cmath>

#include "optimizer/row_math.h"

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
void AdagradByDim(float* __restrict weights, float* __restrict norms, const float* __restrict gradient, int dim,
                  const AdagradStep step) {
  for (int i = 0; i < dim; ++i) {
    const float direction = AdagradDirection<kDecoupled>(gradient[i], weights[i], step.decay);
    const float norm = norms[i] + direction * direction;
    norms[i] = norm;
    const float scale = step.learning_rate / AsDivisor(std::sqrt(norm));
    weights[i] = AdagradWeight<kDecoupled>(weights[i], direction, scale, step);
  }
}

template <bool kDecoupled>
void AdagradByRun(float* __restrict weights, float* __restrict norms, const float* __restrict gradient, int dim,
                  int run, const AdagradStep step) {
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

template <bool kDecoupled>
void ApplyAdagrad(float* weights, float* norms, const float* gradient, int dim, int run, const AdagradStep& step) {
  if (run == 1) {
    AdagradByDim<kDecoupled>(weights, norms, gradient, dim, step);
  } else {
    AdagradByRun<kDecoupled>(weights, norms, gradient, dim, run, step);
  }
}

}  // namespace monolith
