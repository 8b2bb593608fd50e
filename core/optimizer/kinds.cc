#include "optimizer/kinds.h"

#include <string>

#include "base/error.h"
#include "optimizer/kernels.h"

namespace monolith {
namespace {

bool Always(const Params&) { return true; }
bool Never(const Params&) { return false; }
bool UnlessCompressed(const Params& params) { return params.Get("hessian_compression_times") == 1.0; }

}  // namespace

// A table in a function: it is initialised at its first use, and no linker can drop a line of it.
const std::vector<RowOptimizerKind>& RowOptimizerKinds() {
  using enum StateMember::Form;
  static const std::vector<RowOptimizerKind> kinds = {
      // Name, maker, whether it works element by element, message of ByteDance Monolith and its members in the order of
      // the row.
      {"sgd", MakeSgd, Always, {2, {}}},
      {"adagrad", MakeAdagrad, UnlessCompressed, {1, {{1, kPerRun}}}},
      {"adadelta", MakeAdadelta, Always, {6, {{1, kPerWeight}, {2, kPerWeight}}}},
      {"adam", MakeAdam, Always, {7, {{1, kPerWeight}, {2, kPerWeight}, {3, kFloat}, {4, kFloat}}}},
      {"amsgrad",
       MakeAmsgrad,
       Always,
       {8, {{1, kPerWeight}, {2, kPerWeight}, {3, kPerWeight}, {4, kFloat}, {5, kFloat}}}},
      {"ftrl", MakeFtrl, Always, {3, {{2, kPerWeight}, {1, kPerWeight}}}},
      {"group_ftrl", MakeGroupFtrl, Never, {13, {{2, kPerWeight}, {1, kPerWeight}}}},
      {"group_adagrad", MakeGroupAdagrad, Never, {15, {{1, kFloat}}}},
      {"dynamic_wd_adagrad", MakeDynamicWdAdagrad, UnlessCompressed, {4, {{1, kPerRun}, {2, kInteger}}}},
      {"momentum", MakeMomentum, Always, {9, {{1, kPerWeight}}}},
      // Could be joined by its rule, but never was: rows are saved under the names of their segments.
      {"moving_average", MakeMovingAverage, Never, {}},
      {"rmsprop", MakeRmsprop, Always, {11, {{1, kPerWeight}}}},
      {"rmspropv2", MakeRmspropV2, Always, {12, {{1, kPerWeight}}}},
      {"batch_softmax", MakeBatchSoftmax, Never, {14, {{1, kInteger}}}},
  };
  return kinds;
}

const RowOptimizerKind* FindRowOptimizerKind(std::string_view name) {
  for (const RowOptimizerKind& kind : RowOptimizerKinds()) {
    if (kind.name == name) return &kind;
  }
  return nullptr;
}

const RowOptimizerKind& RowOptimizerKindNamed(std::string_view name) {
  if (const RowOptimizerKind* kind = FindRowOptimizerKind(name)) return *kind;
  std::string names;
  for (const RowOptimizerKind& kind : RowOptimizerKinds()) names.append(names.empty() ? "" : ", ").append(kind.name);
  throw Error(Code::kInvalidArgument,
              "kind of a row optimizer must be one of " + names + ", got '" + std::string(name) + "'");
}

}  // namespace monolith
