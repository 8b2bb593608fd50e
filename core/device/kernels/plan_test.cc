#include "device/kernels/plan.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "device/plan_for_test.h"
#include "table/plan.h"

namespace monolith::device {
namespace {

class PlanKernelsTest : public LauncherTest {
 protected:
  // The plan of the kernels equals that of the core, whether ids occur once in it or each time.
  void ExpectPlanOfCore(const std::vector<int64_t>& ids, const std::vector<int64_t>& splits,
                        const std::vector<uint16_t>& buckets = {}) {
    for (const bool dedup : {true, false}) {
      const Plan expected = MakePlan(ids, splits, dedup, buckets);
      const PlanForTest plan = MakeDevicePlan(launcher(), ids, splits, buckets, {.dedup = dedup});
      const auto num_unique = static_cast<size_t>(expected.num_unique());
      ASSERT_EQ(plan.unique.size(), num_unique);
      EXPECT_TRUE(std::equal(plan.unique.begin(), plan.unique.end(), expected.unique.data()));
      EXPECT_TRUE(std::equal(plan.splits.begin(), plan.splits.end(), expected.splits.data()));
      EXPECT_TRUE(std::equal(plan.inverse.begin(), plan.inverse.end(), expected.inverse.data()));
      EXPECT_TRUE(std::equal(plan.starts.begin(), plan.starts.end(), expected.starts.data()));
      EXPECT_TRUE(std::equal(plan.order.begin(), plan.order.end(), expected.order.data()));
      std::set<uint32_t> hot;
      for (size_t u = 0; u < num_unique; ++u) {
        EXPECT_EQ(plan.counts[u], expected.CountOf(static_cast<int64_t>(u)));
        EXPECT_EQ(plan.buckets[u], buckets.empty() ? BucketOf(plan.unique[u]) : expected.buckets[u]);
        if (plan.counts[u] >= 64) hot.insert(static_cast<uint32_t>(u));
      }
      EXPECT_EQ(std::set<uint32_t>(plan.hot.begin(), plan.hot.end()), hot);
      EXPECT_EQ(plan.hot.size(), hot.size());
    }
  }
};

std::vector<int64_t> DrawIds(size_t count, uint64_t num_ids, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> ids(count);
  for (int64_t& id : ids) id = static_cast<int64_t>(Mix64(random() % num_ids));
  return ids;
}

TEST_P(PlanKernelsTest, PlansOfFewIds) {
  ExpectPlanOfCore({}, {0, 0});
  ExpectPlanOfCore({7}, {0, 1});
  ExpectPlanOfCore(std::vector<int64_t>(kBlock, 7), {0, kBlock});
  ExpectPlanOfCore({7, 7, 8, 7}, {0, 0, 2, 2, 4, 4});
}

TEST_P(PlanKernelsTest, EveryInt64IsAnId) {
  std::vector<int64_t> ids = {
      0, -1, 1, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), -2, int64_t{1} << 48};
  for (const int64_t hash : {int64_t{0}, int64_t{-1}}) ids.push_back(IdOfHash(static_cast<uint64_t>(hash)));
  ids.insert(ids.end(), ids.rbegin(), ids.rend());
  ExpectPlanOfCore(ids, {0, static_cast<int64_t>(ids.size())});
  ExpectPlanOfCore(ids, {0, 5, static_cast<int64_t>(ids.size())});
}

TEST_P(PlanKernelsTest, IdsOfSeveralTablesStayApart) {
  const std::vector<int64_t> ids = DrawIds(6000, 1500, 3);
  ExpectPlanOfCore(ids, {0, 6000});
  ExpectPlanOfCore(ids, {0, 0, 1, 2500, 2500, 5999, 6000});
  std::vector<int64_t> splits = {0};
  while (splits.back() < 6000) splits.push_back(splits.back() + 12);
  ExpectPlanOfCore(ids, splits);  // 500 tables
}

TEST_P(PlanKernelsTest, GivenBucketsSayWhereIdsAre) {
  const std::vector<int64_t> ids = DrawIds(3000, 40, 5);
  std::vector<uint16_t> buckets(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) buckets[i] = static_cast<uint16_t>(i % 3 == 0 ? 1023 : i % 7);
  ExpectPlanOfCore(ids, {0, 1000, 3000}, buckets);
}

TEST_P(PlanKernelsTest, AllIdsEqual) {
  ExpectPlanOfCore(std::vector<int64_t>(50'000, -5), {0, 50'000});
  ExpectPlanOfCore(std::vector<int64_t>(50'000, -5), {0, 20'000, 50'000});
}

TEST_P(PlanKernelsTest, ChosenIdsOfOneSlotAreFound) {
  // With this key the upper bits of the hash alone choose the slot, and these ids share them.
  std::vector<int64_t> ids;
  for (uint64_t low = 0; low < 200; ++low) ids.push_back(IdOfHash(uint64_t{0xabcdef} << 40 | low));
  ids.insert(ids.end(), ids.begin(), ids.end());
  const std::vector<int64_t> splits = {0, static_cast<int64_t>(ids.size())};
  const PlanForTest plan = MakeDevicePlan(launcher(), ids, splits, {}, {.process_key = 1});
  const Plan expected = MakePlan(ids, splits, true);
  ASSERT_EQ(plan.unique.size(), 200u);
  EXPECT_TRUE(std::equal(plan.unique.begin(), plan.unique.end(), expected.unique.data()));
  EXPECT_TRUE(std::equal(plan.inverse.begin(), plan.inverse.end(), expected.inverse.data()));
}

TEST_P(PlanKernelsTest, PlanOfAMillionIds) {
  const std::vector<int64_t> ids = DrawIds(1 << 20, 300'000, 11);
  const std::vector<int64_t> splits = {0, 1 << 19, 1 << 20};
  const Plan expected = MakePlan(ids, splits, true);
  const PlanForTest plan = MakeDevicePlan(launcher(), ids, splits, {});
  ASSERT_EQ(static_cast<int64_t>(plan.unique.size()), expected.num_unique());
  EXPECT_TRUE(std::equal(plan.unique.begin(), plan.unique.end(), expected.unique.data()));
  EXPECT_TRUE(std::equal(plan.splits.begin(), plan.splits.end(), expected.splits.data()));
  EXPECT_TRUE(std::equal(plan.inverse.begin(), plan.inverse.end(), expected.inverse.data()));
  EXPECT_TRUE(std::equal(plan.starts.begin(), plan.starts.end(), expected.starts.data()));
  EXPECT_TRUE(std::equal(plan.order.begin(), plan.order.end(), expected.order.data()));
}

INSTANTIATE_FOR_LAUNCHERS(PlanKernelsTest);

TEST(ProcessHashTest, EqualsTheOneOfTheProcess) {
  for (const uint64_t x : {uint64_t{0}, uint64_t{1}, uint64_t{0x123456789abcdef0}, ~uint64_t{0}}) {
    EXPECT_EQ(HashWithKey(x, kProcessKey), HashInProcess(x));
  }
}

}  // namespace
}  // namespace monolith::device
