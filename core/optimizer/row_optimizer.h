// How one segment of a row learns from one gradient.
//
// An optimizer is immutable after construction and shared by all threads; the row it changes is locked by the caller.
// State lives in the row, right behind the weights, 4-byte aligned: read and write 8-byte members with memcpy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/params.h"

namespace monolith {

struct UpdateContext {
  float learning_rate;   // of this segment, schedules and warm-up already applied
  int64_t step;          // global step of the call, >= 0
  uint64_t random_seed;  // differs by table, id, segment and step
  const float* latest;   // weights of this segment as the worker saw them; null when the call gave none
};

class RowOptimizer {
 public:
  virtual ~RowOptimizer() = default;

  int dim() const { return dim_; }
  // True iff Update() looks at more of its context than the learning rate and the step.
  virtual bool needs_whole_context() const { return false; }
  // True iff Update() looks at the latest weights of its context.
  virtual bool uses_latest() const { return false; }
  // A multiple of 4.
  virtual int StateBytes() const = 0;
  virtual void InitState(std::byte* state) const = 0;
  // `gradient` is never written. No argument overlaps another.
  virtual void Update(const UpdateContext& context, float* weights, std::byte* state, const float* gradient) const = 0;

 protected:
  explicit RowOptimizer(int dim) : dim_(dim) {}

 private:
  int dim_;
};

// Kinds are those of optimizer/kinds.h. Every kind also takes "stochastic_rounding" (0/1) and
// "delay_compensation_lambda" (0 = none). Throws kInvalidArgument for an unknown kind or a bad parameter.
std::unique_ptr<RowOptimizer> MakeRowOptimizer(const std::string& kind, int dim, const Params& params);

}  // namespace monolith
