// Rows of ids that are new to a table: whichever call inserts them, in whatever order indexes grow meanwhile.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "table/group.h"
#include "table/group_for_test.h"

namespace monolith {
namespace {

constexpr int kDim = 5;  // odd: the last word of random bits yields one weight
constexpr float kRate = 0.5f;
constexpr int64_t kTime = kStartTime;

std::unique_ptr<Group> MakeRandomGroup() {
  const std::map<std::string, double> adagrad = {{"stochastic_rounding", 0},
                                                 {"delay_compensation_lambda", 0},
                                                 {"initial_accumulator_value", 0.1},
                                                 {"weight_decay_factor", 0},
                                                 {"hessian_compression_times", 1}};
  std::vector<TableSpec> specs;
  specs.emplace_back("random").AddSegment(kDim, {"random_uniform", Params({{"minval", -1}, {"maxval", 1}})},
                                          {"adagrad", Params(adagrad)}, {"fp32", Params()});
  return std::make_unique<Group>(std::move(specs), nullptr);
}

void Learn(Group* group, const std::vector<int64_t>& ids, bool read_first) {
  Plan plan = group->NewPlanOf(0, ids, true);
  std::vector<float> values(static_cast<size_t>(group->NumValues(plan)));
  if (read_first) group->Read(plan, values, 0);
  std::vector<float> gradients(ids.size() * kDim);
  std::iota(gradients.begin(), gradients.end(), 1.0f);
  Update update;
  update.gradients = gradients;
  update.learning_rates = {&kRate, 1};
  update.times = {&kTime, 1};
  group->Apply(plan, update);
}

void Reinitialize(Group* group, const std::vector<int64_t>& ids) {
  std::vector<int8_t> status(ids.size());
  group->Reinitialize(0, ids, kTime, status);
}

// Most of them in a few buckets: their indexes grow many times within one call, between the prefetch of the lines of a
// block of ids and its visit.
std::vector<int64_t> ManyIds() { return CrowdedIds(40'000); }

TEST(InsertTest, LearningAnUnseenIdIsInitializingItAndThenLearning) {
  const std::vector<int64_t> ids = ManyIds();
  const std::unique_ptr<Group> expected = MakeRandomGroup();
  Reinitialize(expected.get(), ids);
  Learn(expected.get(), ids, false);
  for (const bool read_first : {false, true}) {
    const std::unique_ptr<Group> group = MakeRandomGroup();
    Learn(group.get(), ids, read_first);
    EXPECT_EQ(RowsOf(*group), RowsOf(*expected)) << "read_first " << read_first;
  }
}

TEST(InsertTest, AddingToUnseenIdsGivesEachItsOwnValuesBesideKnownOnes) {
  const std::vector<int64_t> ids = ManyIds();
  const std::unique_ptr<Group> group = MakeRandomGroup(), plain = MakeRandomGroup();
  Reinitialize(plain.get(), ids);
  Reinitialize(group.get(), {ids.begin(), ids.begin() + static_cast<int64_t>(ids.size() / 3)});
  std::vector<float> values(ids.size() * kDim), before(values.size()), after(values.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 4096);
  group->Assign(0, ids, values, {&kTime, 1}, true, 0);
  const int64_t splits[] = {0, static_cast<int64_t>(ids.size())};
  ASSERT_EQ(plain->Lookup(ids, splits, before, 0), splits[1]);
  ASSERT_EQ(group->Lookup(ids, splits, after, 0), splits[1]);
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(after[i], before[i] + values[i]) << i;
}

TEST(InsertTest, AnUnseenIdThatComesTwiceInACallGetsOneRowAndTheLastValues) {
  std::vector<int64_t> ids = ManyIds();
  const size_t distinct = ids.size();
  for (size_t i = 0; i < distinct; ++i) ids.push_back(ids[i]);
  std::vector<float> values(ids.size() * kDim, -0.0f), read(values.size());
  std::fill(values.begin() + static_cast<int64_t>(distinct * kDim / 2), values.end(), 3.5f);
  std::fill(values.end() - kDim, values.end(), -0.0f);
  const std::unique_ptr<Group> group = MakeRandomGroup();
  EXPECT_EQ(group->Assign(0, ids, values, {&kTime, 1}, false, 0), static_cast<int64_t>(ids.size()));
  EXPECT_EQ(group->Stats(0).rows, static_cast<int64_t>(distinct));
  const int64_t splits[] = {0, static_cast<int64_t>(ids.size())};
  group->Lookup(ids, splits, read, 0);
  for (size_t i = 0; i + kDim < distinct * kDim; ++i) ASSERT_EQ(read[i], 3.5f) << i;
  EXPECT_TRUE(read.back() == 0.0f && std::signbit(read.back())) << "values are stored as given";
}

}  // namespace
}  // namespace monolith
