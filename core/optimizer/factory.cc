#include <cmath>
#include <string>
#include <utility>

#include "optimizer/kernels.h"
#include "optimizer/kinds.h"

namespace monolith {
namespace {

void RequireFloats(const std::string& kind, const Params& params) {
  for (const auto& [name, value] : params.values()) {
    if (!std::isfinite(static_cast<float>(value))) {
      throw Error(Code::kInvalidArgument, kind + ": " + name + " must be a finite float, got " + std::to_string(value));
    }
  }
}

}  // namespace

std::unique_ptr<RowOptimizer> MakeRowOptimizer(const std::string& kind, int dim, const Params& params) {
  const RowOptimizerKind& found = RowOptimizerKindNamed(kind);
  if (dim < 1) throw Error(Code::kInvalidArgument, kind + ": dim must be >= 1, got " + std::to_string(dim));
  RequireFloats(kind, params);
  std::unique_ptr<RowOptimizer> optimizer = found.make(dim, params);
  const float lambda = params.GetFloat("delay_compensation_lambda");
  if (lambda != 0.0f) optimizer = CompensateDelay(std::move(optimizer), lambda);
  if (params.GetBool("stochastic_rounding")) optimizer = RoundStochastically(std::move(optimizer));
  return optimizer;
}

}  // namespace monolith
