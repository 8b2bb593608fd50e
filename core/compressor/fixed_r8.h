// 8-bit fixed point in [-r, r): one byte a value, steps of r / 128.
//
//   q = trunc(x / step + 1/2 away from zero), clamped to [-128, 127]; NaN -> 0; value = q * step
//
// Halves of a step are rounded away from zero; r itself saturates at 127/128 of r, -r is exact. Training sees the
// values of serving: a lookup returns the rounded value while the stored weight stays exact, and the gradient is passed
// through unchanged. Immutable, shared by all threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compressor/compressor.h"
#include "compressor/fixed_r8_rule.h"

namespace monolith {

class FixedR8Compressor final : public Compressor {
 public:
  // Parameter: r > 0, finite and large enough that r / 128 is a normal float.
  explicit FixedR8Compressor(const Params& params);

  int BytesFor(int dim) const override { return dim; }
  void Encode(const float* values, std::byte* bytes, int dim) const override;
  void Decode(const std::byte* bytes, float* values, int dim) const override;

  bool quantises_training() const override { return true; }
  QuantiserRule quantiser() const override { return QuantiserRule(rule_); }
  void Retrieve(const float* weights, float* values, int dim, int64_t step) const override;

 private:
  FixedR8Rule rule_;
};

}  // namespace monolith
