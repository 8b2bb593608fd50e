// One row of one segment, for the tests of the row optimizers: owns weights and state, and detects writes around them.
// Not thread-safe.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "optimizer/row_optimizer.h"

namespace monolith {

using ParamMap = std::map<std::string, double>;

inline std::unique_ptr<RowOptimizer> MakeForTest(const std::string& kind, int dim, ParamMap params) {
  params.insert({{"stochastic_rounding", 0.0}, {"delay_compensation_lambda", 0.0}});
  return MakeRowOptimizer(kind, dim, Params(params));
}

class RowForTest {
 public:
  // Weights begin at an odd multiple of 4 bytes, as a row may place them, with sentinels on both sides of row and
  // state.
  RowForTest(const std::string& kind, const std::vector<float>& weights, const ParamMap& params)
      : optimizer_(MakeForTest(kind, static_cast<int>(weights.size()), params)),
        memory_(weights.size() + static_cast<size_t>(optimizer_->StateBytes()) / 4 + 2, kSentinel) {
    std::memcpy(this->weights(), weights.data(), weights.size() * sizeof(float));
    optimizer_->InitState(state());
  }

  void Update(const std::vector<float>& gradient, float learning_rate, int64_t step = 0, uint64_t seed = 0,
              const float* latest = nullptr) {
    const std::vector<float> before = gradient;
    optimizer_->Update({learning_rate, step, seed, latest}, weights(), state(), gradient.data());
    EXPECT_EQ(std::memcmp(before.data(), gradient.data(), before.size() * sizeof(float)), 0) << "gradient written";
    EXPECT_EQ(memory_.front(), kSentinel) << "written before the row";
    EXPECT_EQ(memory_.back(), kSentinel) << "written after the state";
  }

  int dim() const { return optimizer_->dim(); }
  float* weights() { return memory_.data() + 1; }
  std::byte* state() { return reinterpret_cast<std::byte*>(weights() + dim()); }
  float* state_floats() { return weights() + dim(); }
  int state_bytes() const { return optimizer_->StateBytes(); }
  int64_t state_step(int byte_offset) {
    int64_t step;
    std::memcpy(&step, state() + byte_offset, sizeof(step));
    return step;
  }
  std::vector<float> weight_vector() { return {weights(), weights() + dim()}; }

 private:
  static constexpr float kSentinel = -12345.0f;
  std::unique_ptr<RowOptimizer> optimizer_;
  std::vector<float> memory_;
};

// Reproducible floats of both signs around `scale`.
inline std::vector<float> NoiseForTest(int count, uint32_t seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = scale * (static_cast<float>(random() >> 8) * 0x1p-23f - 1.0f);
  return values;
}

}  // namespace monolith
