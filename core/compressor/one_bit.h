// The sign of a weight, and a smooth approximation of it in training (HashNet, Cao et al. 2017): a lookup returns
// amplitude * tanh(scale * w), whose scale grows with the step, so that weights converge to +-amplitude, which is what
// serving stores (one byte a value: +1, or -1 for zero, negative and NaN).
//
// The scale at a step is min(max_scale, init_scale * sqrt(1 + 0.005 * s)), s being the newest multiple of step_size at
// or below the step: a function of the step alone, so it needs no saving and is the same for every reader. Immutable,
// shared by all threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compressor/compressor.h"
#include "compressor/one_bit_rule.h"

namespace monolith {

class OneBitCompressor final : public Compressor {
 public:
  // Parameters: step_size, an integer >= 1; amplitude > 0; 0 < init_scale <= max_scale; all finite.
  explicit OneBitCompressor(const Params& params);

  int BytesFor(int dim) const override { return dim; }
  void Encode(const float* values, std::byte* bytes, int dim) const override;
  void Decode(const std::byte* bytes, float* values, int dim) const override;

  bool quantises_training() const override { return true; }
  QuantiserRule quantiser() const override { return QuantiserRule(rule_); }
  void Retrieve(const float* weights, float* values, int dim, int64_t step) const override;
  void Backward(const float* weights, const float* gradient, float* result, int dim, int64_t step) const override;

  // Steps below 0 count as 0.
  double ScaleAt(int64_t step) const { return rule_.ScaleAt(step); }

 private:
  OneBitRule rule_;
};

}  // namespace monolith
