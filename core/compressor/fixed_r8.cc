#include "compressor/fixed_r8.h"

#include <cmath>
#include <limits>
#include <string>

namespace monolith {

FixedR8Compressor::FixedR8Compressor(const Params& params) : rule_{params.GetFloat("r") / 128.0f} {
  if (!(rule_.step >= std::numeric_limits<float>::min()) || !std::isfinite(rule_.step)) {
    throw Error(Code::kInvalidArgument,
                "compressor fixed_r8: r must be positive and finite, with r/128 a normal float, got " +
                    std::to_string(params.Get("r")));
  }
}

void FixedR8Compressor::Encode(const float* values, std::byte* bytes, int dim) const {
  const FixedR8Rule rule = rule_;
  int8_t* out = reinterpret_cast<int8_t*>(bytes);
  for (int i = 0; i < dim; ++i) out[i] = rule.Encode(values[i]);
}

void FixedR8Compressor::Decode(const std::byte* bytes, float* values, int dim) const {
  const FixedR8Rule rule = rule_;
  const int8_t* in = reinterpret_cast<const int8_t*>(bytes);
  for (int i = 0; i < dim; ++i) values[i] = rule.Decode(in[i]);
}

void FixedR8Compressor::Retrieve(const float* weights, float* values, int dim, int64_t /*step*/) const {
  const FixedR8Rule rule = rule_;
  for (int i = 0; i < dim; ++i) values[i] = rule.Retrieve(weights[i]);
}

}  // namespace monolith
