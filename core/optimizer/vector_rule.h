// A row optimizer whose arithmetic is compiled for every instruction set of the core.
#pragma once

#include <cstddef>

#include "base/instruction_set.h"
#include "optimizer/row_optimizer.h"

namespace monolith {

// `Rule` derives from it and has Learn(context, weights, state, gradient) const, which implements Update().
template <typename Rule>
class VectorRule : public RowOptimizer {
 public:
  void Update(const UpdateContext& context, float* weights, std::byte* state, const float* gradient) const final {
    WithInstructions([&] { static_cast<const Rule*>(this)->Learn(context, weights, state, gradient); });
  }

 protected:
  explicit VectorRule(int dim) : RowOptimizer(dim) {}
};

}  // namespace monolith
