#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/kinds.h"
#include "optimizer/row_for_test.h"

namespace monolith {
namespace {

const ParamMap kEveryParameter = {{"initial_accumulator_value", 0.1},
                                  {"hessian_compression_times", 1},
                                  {"weight_decay_factor", 0},
                                  {"averaging_ratio", 0.9},
                                  {"epsilon", 0.01},
                                  {"beta", 1},
                                  {"beta1", 0.9},
                                  {"beta2", 0.99},
                                  {"use_nesterov", 0},
                                  {"l1_regularization_strength", 0},
                                  {"l2_regularization_strength", 0},
                                  {"momentum", 0.9},
                                  {"decouple_weight_decay", 0},
                                  {"enable_dynamic_wd", 0},
                                  {"dynamic_wd_temperature", 1},
                                  {"flip_direction", 0}};

Code CodeOf(const std::string& kind, int dim, const ParamMap& params) {
  try {
    MakeRowOptimizer(kind, dim, Params(params));
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << kind << " was accepted";
  return Code::kDataLoss;
}

TEST(RowOptimizerFactoryTest, RefusesUnknownKindsAndBadDims) {
  EXPECT_EQ(CodeOf("adagrda", 4, kEveryParameter), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf("", 4, kEveryParameter), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf("sgd", 0, kEveryParameter), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf("sgd", -1, kEveryParameter), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf("batch_softmax", 2, kEveryParameter), Code::kInvalidArgument);
}

TEST(RowOptimizerFactoryTest, RefusesMissingAndUnusableParameters) {
  EXPECT_EQ(CodeOf("adagrad", 4, {}), Code::kInvalidArgument);
  const std::vector<std::pair<std::string, double>> bad = {
      {"hessian_compression_times", 0},     {"hessian_compression_times", 1.5}, {"hessian_compression_times", 3e9},
      {"dynamic_wd_temperature", 0},        {"dynamic_wd_temperature", -1},     {"initial_accumulator_value", 1e300},
      {"weight_decay_factor", std::nan("")}};
  for (const auto& [name, value] : bad) {
    ParamMap params = kEveryParameter;
    params.insert({{"stochastic_rounding", 0}, {"delay_compensation_lambda", 0}});
    params[name] = value;
    EXPECT_EQ(CodeOf("dynamic_wd_adagrad", 4, params), Code::kInvalidArgument) << name << " = " << value;
  }
}

// The memory of a new row is not cleared: its rule must write the complete state.
TEST(RowOptimizerFactoryTest, EveryRuleWritesEveryByteOfItsFirstState) {
  for (const RowOptimizerKind& kind : RowOptimizerKinds()) {
    ParamMap params = kEveryParameter;
    params.insert({{"stochastic_rounding", 0}, {"delay_compensation_lambda", 0}});
    for (const int dim : {1, 7}) {
      if (kind.name == "batch_softmax" && dim != 1) continue;
      const auto optimizer = MakeRowOptimizer(std::string(kind.name), dim, Params(params));
      const auto bytes = static_cast<size_t>(optimizer->StateBytes());
      std::vector<std::byte> state(bytes, std::byte{0xa5}), other(bytes, std::byte{0x5a});
      optimizer->InitState(state.data());
      optimizer->InitState(other.data());
      EXPECT_EQ(state, other) << kind.name;
    }
  }
}

}  // namespace
}  // namespace monolith
