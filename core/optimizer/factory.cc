#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "optimizer/kernels.h"

namespace monolith {
namespace {

const std::map<std::string, RowOptimizerMaker*>& Makers() {
  static const std::map<std::string, RowOptimizerMaker*> makers = {
      {"sgd", MakeSgd},
      {"adagrad", MakeAdagrad},
      {"adadelta", MakeAdadelta},
      {"adam", MakeAdam},
      {"amsgrad", MakeAmsgrad},
      {"ftrl", MakeFtrl},
      {"group_ftrl", MakeGroupFtrl},
      {"group_adagrad", MakeGroupAdagrad},
      {"dynamic_wd_adagrad", MakeDynamicWdAdagrad},
      {"momentum", MakeMomentum},
      {"moving_average", MakeMovingAverage},
      {"rmsprop", MakeRmsprop},
      {"rmspropv2", MakeRmspropV2},
      {"batch_softmax", MakeBatchSoftmax},
  };
  return makers;
}

void RequireFloats(const std::string& kind, const Params& params) {
  for (const auto& [name, value] : params.values()) {
    if (!std::isfinite(static_cast<float>(value))) {
      throw Error(Code::kInvalidArgument, kind + ": " + name + " must be a finite float, got " + std::to_string(value));
    }
  }
}

}  // namespace

int CountParameter(const Params& params, const std::string& name) {
  const double value = params.Get(name);
  if (value < 1.0 || value > std::numeric_limits<int>::max() || value != std::floor(value)) {
    throw Error(Code::kInvalidArgument, name + " must be a whole number >= 1, got " + std::to_string(value));
  }
  return static_cast<int>(value);
}

std::unique_ptr<RowOptimizer> MakeRowOptimizer(const std::string& kind, int dim, const Params& params) {
  const auto maker = Makers().find(kind);
  if (maker == Makers().end()) {
    throw Error(Code::kInvalidArgument, "optimizer is not implemented yet. Got kind '" + kind + "'");
  }
  if (dim < 1) throw Error(Code::kInvalidArgument, kind + ": dim must be >= 1, got " + std::to_string(dim));
  RequireFloats(kind, params);
  std::unique_ptr<RowOptimizer> optimizer = maker->second(dim, params);
  const float lambda = params.GetFloat("delay_compensation_lambda");
  if (lambda != 0.0f) optimizer = CompensateDelay(std::move(optimizer), lambda);
  if (params.GetBool("stochastic_rounding")) optimizer = RoundStochastically(std::move(optimizer));
  return optimizer;
}

}  // namespace monolith
