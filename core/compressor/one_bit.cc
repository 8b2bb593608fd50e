#include "compressor/one_bit.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "compressor/tanh.h"

namespace monolith {

namespace {

constexpr double kScaleGrowth = 0.005;
constexpr double kLargestStepSize = 0x1p53;  // beyond it a double cannot represent every integer

void Require(bool condition, const char* name, const char* expected, double got) {
  if (condition) return;
  throw Error(Code::kInvalidArgument,
              std::string("compressor one_bit: ") + name + " must be " + expected + ", got " + std::to_string(got));
}

}  // namespace

OneBitCompressor::OneBitCompressor(const Params& params)
    : step_size_(1),
      init_scale_(params.Get("init_scale")),
      max_scale_(params.Get("max_scale")),
      amplitude_(params.GetFloat("amplitude")) {
  const double step_size = params.Get("step_size");
  Require(step_size >= 1 && step_size <= kLargestStepSize && step_size == std::floor(step_size), "step_size",
          "an integer number of steps, at least 1", step_size);
  Require(init_scale_ > 0 && std::isfinite(init_scale_), "init_scale", "positive and finite", init_scale_);
  Require(max_scale_ >= init_scale_ && std::isfinite(max_scale_), "max_scale", "finite and at least init_scale",
          max_scale_);
  Require(amplitude_ > 0 && std::isfinite(amplitude_), "amplitude", "positive and finite", params.Get("amplitude"));
  step_size_ = static_cast<int64_t>(step_size);
}

double OneBitCompressor::ScaleAt(int64_t step) const {
  const int64_t counted = std::max<int64_t>(step, 0);
  const double newest = static_cast<double>(counted - counted % step_size_);
  return std::min(max_scale_, init_scale_ * std::sqrt(1.0 + kScaleGrowth * newest));
}

void OneBitCompressor::Encode(const float* values, std::byte* bytes, int dim) const {
  int8_t* out = reinterpret_cast<int8_t*>(bytes);
  for (int i = 0; i < dim; ++i) out[i] = static_cast<int8_t>(2 * static_cast<int>(values[i] > 0.0f) - 1);
}

void OneBitCompressor::Decode(const std::byte* bytes, float* values, int dim) const {
  const float amplitude = amplitude_;
  const int8_t* in = reinterpret_cast<const int8_t*>(bytes);
  for (int i = 0; i < dim; ++i) values[i] = static_cast<float>(in[i]) * amplitude;
}

void OneBitCompressor::Retrieve(const float* weights, float* values, int dim, int64_t step) const {
  const double scale = ScaleAt(step);
  const double amplitude = amplitude_;
  for (int i = 0; i < dim; ++i) {
    values[i] = static_cast<float>(amplitude * Tanh(scale * static_cast<double>(weights[i])));
  }
}

void OneBitCompressor::Backward(const float* weights, const float* gradient, float* result, int dim,
                                int64_t step) const {
  const double scale = ScaleAt(step);
  const double slope = static_cast<double>(amplitude_) * scale;
  for (int i = 0; i < dim; ++i) {
    const double tangent = Tanh(scale * static_cast<double>(weights[i]));
    result[i] = static_cast<float>(static_cast<double>(gradient[i]) * slope * (1.0 - tangent * tangent));
  }
}

}  // namespace monolith
