// The weights that the worker read reach the optimizer of every id, for every layout of the gradients.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "base/error.h"
#include "table/group.h"
#include "table/group_for_test.h"

namespace monolith {
namespace {

constexpr double kLambda = 0.25;
constexpr float kRates[] = {0.5f, 0.125f, 1.0f};  // of the segments of table 0, then of table 1
constexpr int kDims[] = {5, 3};

Kernel Sgd(double lambda) {
  return {"sgd", Params({{"stochastic_rounding", 0}, {"delay_compensation_lambda", lambda}})};
}

// Table 0 has a compensated segment of 4 and a plain one of 1, table 1 a compensated one of 3.
std::unique_ptr<Group> MakeCompensatedGroup() {
  std::vector<TableSpec> specs;
  specs.emplace_back("mixed").AddSegment(4, {"zeros", Params()}, Sgd(kLambda), {"fp32", Params()});
  specs.back().AddSegment(1, {"zeros", Params()}, Sgd(0), {"fp32", Params()});
  specs.emplace_back("whole").AddSegment(3, {"zeros", Params()}, Sgd(kLambda), {"fp32", Params()});
  return std::make_unique<Group>(std::move(specs), nullptr);
}

std::vector<float> Noise(std::mt19937_64* random, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(static_cast<int64_t>((*random)() % 2001) - 1000) / 512.0f;
  return values;
}

double Expected(int table, int column, float weight, float gradient, float latest) {
  const bool plain = table == 0 && column == 4;
  const double rate = static_cast<double>(table == 1 ? kRates[2] : kRates[plain ? 1 : 0]);
  const double w = weight, g = gradient, compensated = plain ? g : g + kLambda * g * g * (w - double{latest});
  return w - rate * compensated;
}

Update UpdateOf(const std::vector<float>& gradients, const std::vector<float>& latest,
                const std::vector<int64_t>& times) {
  Update update;
  update.gradients = gradients;
  update.per_unique = true;
  update.learning_rates = kRates;
  update.times = times;
  update.latest = latest;
  return update;
}

void ExpectNear(const std::vector<float>& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(static_cast<double>(got[i]), expected[i], 1e-5) << i;
}

// More ids than fit one task, some of them several times, in random order.
TEST(GroupLatestTest, PerUniqueIdItLiesAsTheGradientsDo) {
  const std::unique_ptr<Group> group = MakeCompensatedGroup();
  std::mt19937_64 random(7);
  const std::vector<int64_t> ids = Draw(&random, 3000, SpreadIds(1200)), splits = {0, 1700, 3000}, times = {kStartTime};
  Plan plan = MakePlan(ids, splits, true);
  const int64_t num_values = group->NumValues(plan);
  group->Apply(plan, UpdateOf(Noise(&random, num_values), {}, times));
  std::vector<float> before(static_cast<size_t>(num_values)), after = before;
  group->Read(plan, before, 0);
  const std::vector<float> gradients = Noise(&random, num_values), latest = Noise(&random, num_values);
  group->Apply(plan, UpdateOf(gradients, latest, times));
  group->Read(plan, after, 0);
  std::vector<double> expected;
  for (size_t cell = 0; cell + 1 < plan.splits.size(); ++cell) {
    const int table = static_cast<int>(cell % 2);
    for (int64_t i = 0; i < (plan.splits[cell + 1] - plan.splits[cell]) * kDims[table]; ++i) {
      const size_t at = expected.size();
      expected.push_back(Expected(table, static_cast<int>(i % kDims[table]), before[at], gradients[at], latest[at]));
    }
  }
  ExpectNear(after, expected);
}

TEST(GroupLatestTest, PerUniqueAndPerInputAgreeWhereNoIdIsRepeated) {
  const std::unique_ptr<Group> by_unique = MakeCompensatedGroup(), by_input = MakeCompensatedGroup();
  const std::vector<int64_t> ids = SpreadIds(50), splits = {0, 0, 50}, times = {kStartTime};
  const Plan plan = MakePlan(ids, splits, true);
  std::mt19937_64 random(9);
  const std::vector<float> gradients = Noise(&random, 150), latest = Noise(&random, 150);
  std::vector<float> unique_gradients(150), unique_latest(150);
  for (size_t i = 0; i < 150; ++i) {
    const size_t to = static_cast<size_t>(plan.inverse[i / 3]) * 3 + i % 3;
    unique_gradients[to] = gradients[i];
    unique_latest[to] = latest[i];
  }
  for (int step = 0; step < 3; ++step) {
    by_unique->Apply(plan, UpdateOf(unique_gradients, unique_latest, times));
    Update update = UpdateOf(gradients, latest, times);
    update.per_unique = false;
    by_input->Apply(plan, update);
  }
  EXPECT_EQ(RowsOf(*by_unique), RowsOf(*by_input));
}

TEST(GroupLatestTest, AnotherNumberOfThemIsRefused) {
  const std::unique_ptr<Group> group = MakeCompensatedGroup();
  const std::vector<int64_t> ids = {1, 1}, splits = {0, 0, 2}, times = {kStartTime};
  const std::vector<float> gradients(3, 1.0f), per_input(6, 0.0f);
  try {
    group->Apply(MakePlan(ids, splits, true), UpdateOf(gradients, per_input, times));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "latest must have 3 elements, got 6");
  }
}

TEST(GroupLatestTest, ATableUsesThemIffASegmentDoes) {
  const std::unique_ptr<Group> compensated = MakeCompensatedGroup(), plain = MakeTestGroup();
  for (const int table : {0, 1}) {
    EXPECT_TRUE(compensated->table(table).spec.uses_latest());
    EXPECT_FALSE(plain->table(table).spec.uses_latest());
  }
}

}  // namespace
}  // namespace monolith
