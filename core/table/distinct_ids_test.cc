#include "table/distinct_ids.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "table/group_for_test.h"

namespace monolith {
namespace {

constexpr BucketRange kAll{0, kNumBuckets};
constexpr uint8_t kNarrow[] = {0, 0};

Plan TwoTables(const std::vector<int64_t>& ids) {
  const auto count = static_cast<int64_t>(ids.size());
  const std::vector<int64_t> splits = {0, count / 3, count};
  return MakePlan(ids, splits, true);
}

TEST(DistinctIdsTest, APlanMadeOfDistinctIdsHasTheSameCellsAndCounts) {
  std::mt19937_64 random(7);
  const Plan plan = TwoTables(Draw(&random, 5000, SpreadIds(700)));
  const std::vector<CellCount> cells = CellsOf(plan);
  std::vector<int32_t> counts;
  for (int64_t u = 0; u < plan.num_unique(); ++u) counts.push_back(plan.CountOf(u));
  const Plan made = PlanOfDistinct({cells, {plan.unique.data(), plan.unique.size()}, counts}, kNarrow, kAll);
  ASSERT_EQ(made.num_unique(), plan.num_unique());
  ASSERT_EQ(made.num_ids(), plan.num_unique());
  EXPECT_TRUE(std::equal(made.unique.data(), made.unique.data() + made.unique.size(), plan.unique.data()));
  EXPECT_TRUE(std::equal(made.splits.data(), made.splits.data() + made.splits.size(), plan.splits.data()));
  std::map<std::pair<int, int64_t>, int> inputs;  // (table, position) -> number of ids that have it
  for (int64_t u = 0; u < made.num_unique(); ++u) {
    EXPECT_EQ(made.CountOf(u), plan.CountOf(u));
    ASSERT_EQ(made.starts[u + 1] - made.starts[u], 1);
    const int64_t position = made.order[made.starts[u]];
    EXPECT_EQ(made.inverse[position], u);
    const int table = position < made.table_splits[1] ? 0 : 1;
    ++inputs[{table, position}];
    const auto cell =
        std::upper_bound(made.splits.data(), made.splits.data() + made.splits.size(), u) - made.splits.data() - 1;
    EXPECT_EQ(cell % 2, table);
  }
  EXPECT_EQ(static_cast<int64_t>(inputs.size()), made.num_unique());
}

TEST(DistinctIdsTest, APartOfTheBucketsIsAPlanOfItsOwn) {
  const std::vector<int64_t> ids = IdsInBuckets(50, 300, 310);
  const Plan plan = TwoTables(ids);
  const std::vector<CellCount> cells = CellsOf(plan);
  const DistinctIds distinct{cells, {plan.unique.data(), plan.unique.size()}, {}};
  EXPECT_EQ(PlanOfDistinct(distinct, kNarrow, {300, 310}).num_unique(), 50);
  EXPECT_THROW(PlanOfDistinct(distinct, kNarrow, {0, 300}), Error);
  EXPECT_THROW(PlanOfDistinct(distinct, kNarrow, {301, 1024}), Error);
}

TEST(DistinctIdsTest, NothingIsAPlan) {
  const Plan plan = PlanOfDistinct({}, kNarrow, {5, 5});
  EXPECT_EQ(plan.num_unique(), 0);
  EXPECT_EQ(plan.splits[2 * kNumBuckets], 0);
}

TEST(DistinctIdsTest, WhatDoesNotFitIsRefused) {
  const std::vector<int64_t> ids = IdsInBuckets(3, 8, 9);
  const std::span<const int64_t> keys(ids);
  const auto refuses = [&](std::vector<CellCount> cells, std::span<const int64_t> given,
                           std::vector<int32_t> counts = {}) {
    try {
      PlanOfDistinct({cells, given, counts}, kNarrow, kAll);
    } catch (const Error& error) {
      return error.code() == Code::kInvalidArgument;
    }
    return false;
  };
  EXPECT_FALSE(refuses({{16, 3}}, keys));
  EXPECT_TRUE(refuses({{16, 2}}, keys));                   // a key of no cell
  EXPECT_TRUE(refuses({{16, 4}}, keys));                   // a cell without its key
  EXPECT_TRUE(refuses({{16, 0}, {17, 3}}, keys));          // an empty cell
  EXPECT_TRUE(refuses({{17, 1}, {16, 2}}, keys));          // descending
  EXPECT_TRUE(refuses({{16, 1}, {16, 2}}, keys));          // twice
  EXPECT_TRUE(refuses({{18, 3}}, keys));                   // another bucket than the keys'
  EXPECT_TRUE(refuses({{2048, 3}}, keys));                 // no cell
  EXPECT_TRUE(refuses({{16, 3}}, keys, {1, 1}));           // a count is missing
  EXPECT_TRUE(refuses({{16, 3}}, keys, {1, 0, 1}));        // an id that did not occur
  EXPECT_TRUE(refuses({{0, 0xffffffffu}, {1, 4}}, keys));  // false sizes
}

TEST(DistinctIdsTest, AWideKeyIsTakenInTheBucketItComesIn) {
  const std::vector<int64_t> keys = {INT64_MIN + 5};
  const uint8_t wide[] = {1, 0};
  const uint32_t bucket = (BucketOf(keys[0]) + 1) % kNumBuckets;
  const std::vector<CellCount> cells = {{bucket * 2, 1}};
  const Plan plan = PlanOfDistinct({cells, keys, {}}, wide, kAll);
  EXPECT_EQ(plan.buckets[0], bucket);
  EXPECT_THROW(PlanOfDistinct({cells, keys, {}}, kNarrow, kAll), Error);
}

}  // namespace
}  // namespace monolith
