#include "device/kernels/update.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/twin_tables_for_test.h"
#include "optimizer/row_for_test.h"

namespace monolith::device {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A table with this policy for each dim.
std::vector<TableSpec> SpecsOf(const std::vector<NonFinite>& policies, const std::vector<int>& dims) {
  const ParamMap plain = {{"stochastic_rounding", 0}, {"delay_compensation_lambda", 0}};
  std::vector<TableSpec> specs;
  for (size_t t = 0; t < policies.size(); ++t) {
    specs.emplace_back("table" + std::to_string(t));
    specs.back().AddSegment(dims[t], {"ones", Params()}, {"sgd", Params(plain)}, {"fp32", Params()});
    specs.back().nonfinite = policies[t];
  }
  return specs;
}

class UpdateKernelsTest : public LauncherTest {
 protected:
  static UpdateForTest UpdateOf(const TwinTables& twins) {
    return {.gradients = NoiseForTest(static_cast<int>(twins.num_values()), 1)};
  }
};

TEST_P(UpdateKernelsTest, GradientsAreScaledAtAnyDim) {
  for (const int dim : {1, 3, 4, 16, 33, 1024}) {
    for (const float scale : {1.0f, 0.3f, 0.0f}) {
      TwinTables twins(launcher(), SpecsOf({NonFinite::kRaise}, {dim}));
      twins.Plan({1, 2, 3}, {0, 3});
      UpdateForTest update = UpdateOf(twins);
      update.scale = scale;
      twins.Apply(update);
      twins.ExpectSameRows("scaled");
      EXPECT_FALSE(twins.is_refused());
    }
  }
}

TEST_P(UpdateKernelsTest, ASkippedIdIsLeftAloneAndGetsNoRow) {
  for (const int dim : {1, 5, 64}) {
    TwinTables twins(launcher(), SpecsOf({NonFinite::kSkip, NonFinite::kApply}, {dim, 2}));
    twins.Plan({1, 2, 1, 2}, {0, 2, 4});
    twins.Apply(UpdateOf(twins));
    twins.Plan({1, 2, 3, 4, 5, 6}, {0, 4, 6});
    for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      UpdateForTest update = UpdateOf(twins);
      for (size_t i = 0; i < update.gradients.size(); i += 2) update.gradients[i] = bad;  // of most ids
      twins.Apply(update);
      twins.ExpectSameRows("skipped");
    }
    twins.Apply(UpdateOf(twins));
    twins.ExpectSameRows("learnt after all");
  }
}

TEST_P(UpdateKernelsTest, AProductBeyondTheRangeIsNotFinite) {
  TwinTables twins(launcher(), SpecsOf({NonFinite::kSkip}, {4}));
  twins.Plan({1, 2}, {0, 2});
  UpdateForTest update = UpdateOf(twins);
  update.gradients[5] = 2e38f;
  update.scale = 2.0f;
  twins.Apply(update);
  twins.ExpectSameRows("beyond");
}

TEST_P(UpdateKernelsTest, ARefusedUpdateChangesNothingAndNamesItsFirstId) {
  TwinTables twins(launcher(), SpecsOf({NonFinite::kSkip, NonFinite::kRaise}, {3, 6}));
  twins.Plan({1, 2, 1, 2}, {0, 2, 4});
  twins.Apply(UpdateOf(twins));
  twins.Plan({1, 2, 3, 1, 2, 3, 4, 5}, {0, 3, 8});
  UpdateForTest update = UpdateOf(twins);
  std::vector<size_t> firsts;  // of the ids of the second table: the longer gradients
  for (size_t u = 0, at = 0; u < 8; ++u) {
    const bool is_second = twins.TableOf(u) == 1;
    if (is_second) firsts.push_back(u);
    if (is_second && firsts.size() >= 2) update.gradients[at + 5] = kInfinity;
    at += is_second ? 6 : 3;
  }
  const UpdateCounts counts = twins.ApplyOnDevice(update, {0.5f, 0.5f});
  EXPECT_TRUE(twins.is_refused());
  EXPECT_EQ(twins.first_refused(), firsts[1]);
  EXPECT_EQ(counts.updated + counts.inserted, 0u);
  twins.ExpectSameRows("refused");
}

TEST_P(UpdateKernelsTest, TimesAndFrequenciesAreThoseOfTheGroup) {
  TwinTables twins(launcher(), SpecsOf({NonFinite::kRaise, NonFinite::kRaise}, {2, 3}));
  for (uint32_t turn = 0; turn < 130; ++turn) {  // more than the largest frequency
    twins.Plan({1, 2, 1, 3, 4}, {0, 3, 5});
    UpdateForTest update = UpdateOf(twins);
    update.times = {50 + turn, 40, 10 + 2 * turn, 7, 0xffffffff};
    update.epoch = kMaxRowEpoch;
    twins.Apply(update);
    twins.ExpectSameRows("turn " + std::to_string(turn));
    if (HasFailure()) return;
  }
}

TEST_P(UpdateKernelsTest, CountsOfManyIdsAreExact) {
  TwinTables twins(launcher(), SpecsOf({NonFinite::kRaise}, {1}), 1900);
  std::vector<int64_t> ids(1900);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  twins.Plan(ids, {0, 1900});
  twins.Apply(UpdateOf(twins));
  twins.Apply(UpdateOf(twins));
  twins.ExpectSameRows("many");
}

INSTANTIATE_FOR_LAUNCHERS(UpdateKernelsTest);

}  // namespace
}  // namespace monolith::device
