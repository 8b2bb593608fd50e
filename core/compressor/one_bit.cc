#include "compressor/one_bit.h"

#include <cmath>
#include <string>

namespace monolith {

namespace {

constexpr double kLargestStepSize = 0x1p53;  // beyond it a double cannot represent every integer

void Require(bool condition, const char* name, const char* expected, double got) {
  if (condition) return;
  throw Error(Code::kInvalidArgument,
              std::string("compressor one_bit: ") + name + " must be " + expected + ", got " + std::to_string(got));
}

OneBitRule CheckedRule(const Params& params) {
  const double init_scale = params.Get("init_scale"), max_scale = params.Get("max_scale");
  const float amplitude = params.GetFloat("amplitude");
  const double step_size = params.Get("step_size");
  Require(step_size >= 1 && step_size <= kLargestStepSize && step_size == std::floor(step_size), "step_size",
          "an integer number of steps, at least 1", step_size);
  Require(init_scale > 0 && std::isfinite(init_scale), "init_scale", "positive and finite", init_scale);
  Require(max_scale >= init_scale && std::isfinite(max_scale), "max_scale", "finite and at least init_scale",
          max_scale);
  Require(amplitude > 0 && std::isfinite(amplitude), "amplitude", "positive and finite", params.Get("amplitude"));
  return {static_cast<int64_t>(step_size), init_scale, max_scale, amplitude};
}

}  // namespace

OneBitCompressor::OneBitCompressor(const Params& params) : rule_(CheckedRule(params)) {}

void OneBitCompressor::Encode(const float* values, std::byte* bytes, int dim) const {
  int8_t* out = reinterpret_cast<int8_t*>(bytes);
  for (int i = 0; i < dim; ++i) out[i] = OneBitRule::Encode(values[i]);
}

void OneBitCompressor::Decode(const std::byte* bytes, float* values, int dim) const {
  const OneBitRule rule = rule_;
  const int8_t* in = reinterpret_cast<const int8_t*>(bytes);
  for (int i = 0; i < dim; ++i) values[i] = rule.Decode(in[i]);
}

void OneBitCompressor::Retrieve(const float* weights, float* values, int dim, int64_t step) const {
  const OneBitTangent tangent = rule_.At(step);
  for (int i = 0; i < dim; ++i) values[i] = tangent.Retrieve(weights[i]);
}

void OneBitCompressor::Backward(const float* weights, const float* gradient, float* result, int dim,
                                int64_t step) const {
  const OneBitTangent tangent = rule_.At(step);
  for (int i = 0; i < dim; ++i) result[i] = tangent.Backward(weights[i], gradient[i]);
}

}  // namespace monolith
