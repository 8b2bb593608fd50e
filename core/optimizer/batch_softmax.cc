#include <string>

#include "optimizer/kernels.h"
#include "optimizer/row_math.h"

namespace monolith {
namespace {

// The one weight estimates the steps between two updates of the row; the gradient is ignored.
// State: int64 global_step of the last update, 0 at first.
class BatchSoftmax final : public RowOptimizer {
 public:
  explicit BatchSoftmax(int dim) : RowOptimizer(dim) {}

  int StateBytes() const override { return static_cast<int>(sizeof(int64_t)); }
  void InitState(std::byte* state) const override { StoreStep(state, 0); }
  void Update(const UpdateContext& context, float* weights, std::byte* state, const float*) const override {
    const float interval = static_cast<float>(context.step - LoadStep(state));
    weights[0] = (1.0f - context.learning_rate) * weights[0] + context.learning_rate * interval;
    StoreStep(state, context.step);
  }
};

}  // namespace

std::unique_ptr<RowOptimizer> MakeBatchSoftmax(int dim, const Params&) {
  if (dim != 1) {
    throw Error(Code::kInvalidArgument, "batch_softmax needs a segment of dim 1, got " + std::to_string(dim) +
                                            "; give it a segment of its own");
  }
  return std::make_unique<BatchSoftmax>(dim);
}

}  // namespace monolith
