#include "optimizer/kernels.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "base/error.h"
#include "optimizer/adadelta_rule.h"
#include "optimizer/adagrad_rule.h"
#include "optimizer/adam_rule.h"
#include "optimizer/amsgrad_rule.h"
#include "optimizer/batch_softmax_rule.h"
#include "optimizer/dynamic_wd_adagrad_rule.h"
#include "optimizer/ftrl_rule.h"
#include "optimizer/group_adagrad_rule.h"
#include "optimizer/group_ftrl_rule.h"
#include "optimizer/momentum_rule.h"
#include "optimizer/moving_average_rule.h"
#include "optimizer/rmsprop_rule.h"
#include "optimizer/rule_optimizer.h"
#include "optimizer/sgd_rule.h"

namespace monolith {
namespace {

// Returns a parameter that is a count. Throws kInvalidArgument unless it is an integer from 1 to 2^31 - 1.
int CountParameter(const Params& params, const std::string& name) {
  const double value = params.Get(name);
  if (value < 1.0 || value > std::numeric_limits<int>::max() || value != std::floor(value)) {
    throw Error(Code::kInvalidArgument, name + " must be an integer >= 1, got " + std::to_string(value));
  }
  return static_cast<int>(value);
}

AdamMoments MomentsOf(const Params& params) {
  return {{},
          params.GetFloat("beta1"),
          params.GetFloat("beta2"),
          params.GetFloat("weight_decay_factor"),
          params.GetFloat("epsilon")};
}

FtrlParameters FtrlParametersOf(const Params& params) {
  return {params.GetFloat("initial_accumulator_value"), params.GetFloat("beta"),
          params.GetFloat("l1_regularization_strength"), params.GetFloat("l2_regularization_strength")};
}

std::unique_ptr<RowOptimizer> MakeRmspropOf(int dim, const Params& params, bool fading_sum) {
  const double momentum = static_cast<double>(params.GetFloat("momentum"));
  const double decay = static_cast<double>(params.GetFloat("weight_decay_factor"));
  return MakeElementwise(dim, RmspropRule{{}, decay, momentum, fading_sum ? 1.0 : 1.0 - momentum});
}

template <bool kDecoupled>
std::unique_ptr<RowOptimizer> MakeDynamic(int dim, float initial, int run, const DynamicDecay& decay) {
  if (run == 1) return MakeElementwise(dim, DynamicWdAdagradRule<kDecoupled>{{}, initial, decay});
  return MakeOfSegment(dim, DynamicWdAdagradRunRule<kDecoupled>{initial, run, decay});
}

}  // namespace

std::unique_ptr<RowOptimizer> MakeSgd(int dim, const Params&) { return MakeElementwise(dim, SgdRule{}); }

std::unique_ptr<RowOptimizer> MakeAdagrad(int dim, const Params& params) {
  const float initial = params.GetFloat("initial_accumulator_value");
  const float decay = params.GetFloat("weight_decay_factor");
  const int run = CountParameter(params, "hessian_compression_times");
  if (run == 1) return MakeElementwise(dim, AdagradRule{{}, initial, decay});
  return MakeOfSegment(dim, AdagradRunRule{initial, decay, run});
}

std::unique_ptr<RowOptimizer> MakeAdadelta(int dim, const Params& params) {
  return MakeElementwise(
      dim,
      AdadeltaRule{
          {}, params.GetFloat("weight_decay_factor"), params.GetFloat("averaging_ratio"), params.GetFloat("epsilon")});
}

std::unique_ptr<RowOptimizer> MakeAdam(int dim, const Params& params) {
  const AdamMoments moments = MomentsOf(params);
  if (params.GetBool("use_nesterov")) return MakeElementwise(dim, AdamRule<true>{moments});
  return MakeElementwise(dim, AdamRule<false>{moments});
}

std::unique_ptr<RowOptimizer> MakeAmsgrad(int dim, const Params& params) {
  const AdamMoments moments = MomentsOf(params);
  if (params.GetBool("use_nesterov")) return MakeElementwise(dim, AmsgradRule<true>{moments});
  return MakeElementwise(dim, AmsgradRule<false>{moments});
}

std::unique_ptr<RowOptimizer> MakeFtrl(int dim, const Params& params) {
  return MakeElementwise(dim, FtrlRule{{}, FtrlParametersOf(params)});
}

std::unique_ptr<RowOptimizer> MakeGroupFtrl(int dim, const Params& params) {
  return MakeOfSegment(dim, GroupFtrlRule{FtrlParametersOf(params)});
}

std::unique_ptr<RowOptimizer> MakeGroupAdagrad(int dim, const Params& params) {
  return MakeOfSegment(
      dim, GroupAdagradRule{params.GetFloat("initial_accumulator_value"), params.GetFloat("beta"),
                            params.GetFloat("l2_regularization_strength"), params.GetFloat("weight_decay_factor")});
}

std::unique_ptr<RowOptimizer> MakeDynamicWdAdagrad(int dim, const Params& params) {
  const float initial = params.GetFloat("initial_accumulator_value");
  const float decay = params.GetFloat("weight_decay_factor");
  const int run = CountParameter(params, "hessian_compression_times");
  const bool decoupled = params.GetBool("decouple_weight_decay");
  const DynamicDecay dynamic{decay, params.GetBool("enable_dynamic_wd"), params.GetBool("flip_direction"),
                             params.Get("dynamic_wd_temperature")};
  if (!(dynamic.temperature > 0.0)) throw Error(Code::kInvalidArgument, "dynamic_wd_temperature must be > 0");
  if (decoupled) return MakeDynamic<true>(dim, initial, run, dynamic);
  return MakeDynamic<false>(dim, initial, run, dynamic);
}

std::unique_ptr<RowOptimizer> MakeMomentum(int dim, const Params& params) {
  const float decay = params.GetFloat("weight_decay_factor");
  const float momentum = params.GetFloat("momentum");
  if (params.GetBool("use_nesterov")) return MakeElementwise(dim, MomentumRule<true>{{}, decay, momentum});
  return MakeElementwise(dim, MomentumRule<false>{{}, decay, momentum});
}

std::unique_ptr<RowOptimizer> MakeMovingAverage(int dim, const Params& params) {
  return MakeElementwise(dim, MovingAverageRule{{}, params.GetFloat("momentum")});
}

std::unique_ptr<RowOptimizer> MakeRmsprop(int dim, const Params& params) { return MakeRmspropOf(dim, params, false); }
std::unique_ptr<RowOptimizer> MakeRmspropV2(int dim, const Params& params) { return MakeRmspropOf(dim, params, true); }

std::unique_ptr<RowOptimizer> MakeBatchSoftmax(int dim, const Params&) {
  if (dim != 1) {
    throw Error(Code::kInvalidArgument, "batch_softmax needs a segment of dim 1, got " + std::to_string(dim) +
                                            "; give it a segment of its own");
  }
  return MakeElementwise(dim, BatchSoftmaxRule{});
}

}  // namespace monolith
