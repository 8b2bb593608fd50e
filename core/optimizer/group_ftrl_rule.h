// The rule of group FTRL, which moves all weights of a segment to zero together.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "optimizer/ftrl_rule.h"
#include "optimizer/row_math.h"
#include "optimizer/update_context.h"

namespace monolith {

// State: norm[dim], zero[dim].
struct GroupFtrlRule : FtrlParameters {
  int StateBytes(int dim) const { return 2 * dim * kFloatBytes; }
  void InitState(std::byte* state, int dim) const {
    std::fill_n(Floats(state), dim, initial);
    std::fill_n(Floats(state) + dim, dim, 0.0f);
  }

  void Learn(const UpdateContext& context, float* weights, std::byte* state, const float* gradient, int dim) const {
    if (context.learning_rate == 0.0f) return;
    float* norms = Floats(state);
    float* zeros = norms + dim;
    GatherEvidence(weights, norms, zeros, gradient, dim, context.learning_rate);
    const double length = std::sqrt(SumOfSquares(zeros, dim));
    if (length <= static_cast<double>(l1)) {  // also without any evidence, which would divide 0 by 0
      std::fill_n(weights, dim, 0.0f);
      return;
    }
    const float shrink = static_cast<float>((static_cast<double>(l1) - length) / length);
    Solve(*this, weights, zeros, dim, context.learning_rate, shrink);
  }

 private:
  // Leaves the roots of the norms in `weights`, whose values are no longer needed: roots are expensive and Solve needs
  // them.
  static void GatherEvidence(float* __restrict weights, float* __restrict norms, float* __restrict zeros,
                             const float* __restrict gradient, int dim, float learning_rate) {
    for (int i = 0; i < dim; ++i) {
      const float norm = norms[i] + gradient[i] * gradient[i];
      const float root = std::sqrt(norm);
      zeros[i] = NextEvidence(zeros[i], gradient[i], weights[i], std::sqrt(norms[i]), root, learning_rate);
      norms[i] = norm;
      weights[i] = root;
    }
  }

  // Turns roots into weights. `shrink` = (l1 - |z|) / |z|, negative.
  static void Solve(const FtrlParameters parameters, float* __restrict weights, const float* __restrict zeros, int dim,
                    float learning_rate, float shrink) {
    for (int i = 0; i < dim; ++i) {
      weights[i] = learning_rate * zeros[i] * shrink / parameters.Divisor(weights[i], learning_rate);
    }
  }
};

}  // namespace monolith
