// Updates one segment of a row by one gradient.
//
// An optimizer is immutable after construction and shared by all threads; the caller locks the row that it changes.
// State is stored in the row, right after the weights, 4-byte aligned: read and write 8-byte members with memcpy.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/params.h"
#include "optimizer/update_context.h"

namespace monolith {

// What an optimizer is made of, for those that run its rule themselves: a GPU gets the rule's bytes.
struct RuleView {
  const void* type;  // RuleType<Rule>()
  const void* rule;  // owned by the optimizer
  size_t bytes;
  float delay_compensation_lambda = 0.0f;  // 0: none
  bool stochastic_rounding = false;
};

// A different address for each type of rule.
template <typename Rule>
const void* RuleType() {
  static constexpr Rule* kType = nullptr;
  return &kType;
}

class RowOptimizer {
 public:
  virtual ~RowOptimizer() = default;

  int dim() const { return dim_; }
  // True iff Update() reads more of its context than the learning rate and the step.
  virtual bool needs_whole_context() const { return false; }
  // True iff Update() reads the latest weights of its context.
  virtual bool uses_latest() const { return false; }
  // A multiple of 4.
  virtual int StateBytes() const = 0;
  virtual void InitState(std::byte* state) const = 0;
  // `gradient` is never written. No argument overlaps another.
  virtual void Update(const UpdateContext& context, float* weights, std::byte* state, const float* gradient) const = 0;
  virtual RuleView rule() const = 0;

 protected:
  explicit RowOptimizer(int dim) : dim_(dim) {}

 private:
  int dim_;
};

// Kinds are those of optimizer/kinds.h. Every kind also accepts "stochastic_rounding" (0/1) and
// "delay_compensation_lambda" (0 = none). Throws kInvalidArgument for an unknown kind or a bad parameter.
std::unique_ptr<RowOptimizer> MakeRowOptimizer(const std::string& kind, int dim, const Params& params);

}  // namespace monolith
