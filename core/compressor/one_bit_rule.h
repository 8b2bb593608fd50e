// The sign of a weight, and a scaled tangent for training, one value at a time (one_bit.h has the formulas). Pure
// functions; thread-safe.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/tanh.h"

namespace monolith {

// What training sees at one step. Both functions are branch-free, so that a loop over an array vectorises.
struct OneBitTangent {
  double scale;
  double amplitude;

  float Retrieve(float weight) const {
    return static_cast<float>(amplitude * Tanh(scale * static_cast<double>(weight)));
  }
  // The gradient of the stored weight from that of the retrieved one.
  float Backward(float weight, float gradient) const {
    const double tangent = Tanh(scale * static_cast<double>(weight));
    return static_cast<float>(static_cast<double>(gradient) * (amplitude * scale) * (1.0 - tangent * tangent));
  }
};

struct OneBitRule {
  int64_t step_size;
  double init_scale;
  double max_scale;
  float amplitude;

  // Steps below 0 count as 0.
  double ScaleAt(int64_t step) const {
    constexpr double kScaleGrowth = 0.005;
    const int64_t counted = std::max<int64_t>(step, 0);
    const double newest = static_cast<double>(counted - counted % step_size);
    return std::min(max_scale, init_scale * std::sqrt(1.0 + kScaleGrowth * newest));
  }
  OneBitTangent At(int64_t step) const { return {ScaleAt(step), static_cast<double>(amplitude)}; }

  static int8_t Encode(float value) { return static_cast<int8_t>(2 * static_cast<int>(value > 0.0f) - 1); }
  float Decode(int8_t sign) const { return static_cast<float>(sign) * amplitude; }
};

}  // namespace monolith
