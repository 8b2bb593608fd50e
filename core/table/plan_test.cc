#include "table/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/thread_pool.h"
#include "table/first_seen.h"
#include "table/first_touch_for_test.h"
#include "table/group_for_test.h"

namespace monolith {
namespace {

Plan PlanOf(std::span<const int64_t> ids) {
  return MakePlan(ids, std::vector<int64_t>{0, static_cast<int64_t>(ids.size())}, true);
}

// Every input position once, with its id, in the cell of that id.
void ExpectWhole(const Plan& plan, std::span<const int64_t> ids) {
  std::vector<int32_t> order(plan.order.data(), plan.order.data() + plan.order.size());
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_EQ(order[i], static_cast<int32_t>(i));
    ASSERT_EQ(plan.unique[static_cast<size_t>(plan.inverse[i])], ids[i]);
  }
  for (uint32_t bucket = 0; bucket < kNumBuckets; ++bucket) {
    for (int64_t u = plan.splits[bucket]; u < plan.splits[bucket + 1]; ++u) {
      ASSERT_EQ(BucketOf(plan.unique[static_cast<size_t>(u)]), bucket);
      ASSERT_GT(plan.CountOf(u), 0);
    }
  }
}

// The plan by its definition: cell by cell, and in each the ids in order of occurrence.
void ExpectPlain(const Plan& plan, std::span<const int64_t> ids, std::span<const int64_t> splits,
                 std::span<const uint16_t> buckets) {
  const size_t num_tables = splits.size() - 1;
  std::vector<std::vector<int32_t>> cells(kNumBuckets * num_tables);
  for (size_t table = 0; table < num_tables; ++table) {
    for (int64_t i = splits[table]; i < splits[table + 1]; ++i)
      cells[(buckets.empty() ? BucketOf(ids[i]) : buckets[i]) * num_tables + table].push_back(static_cast<int32_t>(i));
  }
  size_t place = 0, u = 0;
  for (size_t cell = 0; cell < cells.size(); ++cell) {
    ASSERT_EQ(plan.splits[cell], static_cast<int64_t>(u));
    std::vector<int64_t> seen;
    std::vector<std::vector<int32_t>> positions;
    for (const int32_t i : cells[cell]) {
      const auto found = std::find(seen.begin(), seen.end(), ids[i]);
      const auto number = plan.deduplicated ? static_cast<size_t>(found - seen.begin()) : seen.size();
      if (number == seen.size()) {
        seen.push_back(ids[i]);
        positions.emplace_back();
      }
      positions[number].push_back(i);
    }
    for (size_t number = 0; number < seen.size(); ++number, ++u) {
      ASSERT_EQ(plan.unique[u], seen[number]);
      ASSERT_EQ(plan.starts[u], static_cast<int32_t>(place));
      if (!buckets.empty()) {
        ASSERT_EQ(plan.buckets[u], cell / num_tables);
      }
      for (const int32_t i : positions[number]) {
        ASSERT_EQ(plan.order[place++], i);
        ASSERT_EQ(plan.inverse[i], static_cast<int32_t>(u));
      }
    }
  }
  EXPECT_EQ(plan.splits[cells.size()], static_cast<int64_t>(u));
  EXPECT_EQ(plan.num_unique(), static_cast<int64_t>(u));
  EXPECT_EQ(plan.starts[u], static_cast<int32_t>(ids.size()));
  EXPECT_EQ(place, ids.size());
}

// Ids of one bucket that agree in the upper, or in the lower, 32 bits of their hash, or of the id itself.
std::vector<int64_t> LookAlikes() {
  std::vector<int64_t> ids;
  for (uint64_t k = 0; k < 8; ++k) {
    ids.push_back(IdOfHash((uint64_t{0x12345678} << 32) | (k * 0x01010101)));
    ids.push_back(IdOfHash((uint64_t{0x12345678} << 32) ^ (k << 33)));
  }
  const std::vector<int64_t> crowd = IdsInBuckets(1, 5, 6);
  for (uint64_t high = 1; ids.size() < 40; ++high) {  // equal lower halves, by which the bucket still differs
    const auto id = static_cast<int64_t>((high << 32) | static_cast<uint32_t>(crowd[0]));
    if (BucketOf(id) == 5) ids.push_back(id);
  }
  for (uint64_t high = 1; ids.size() < 60; ++high) {  // equal after the halves were mixed
    const auto id = static_cast<int64_t>((high << 32) | (static_cast<uint32_t>(crowd[0]) ^ high));
    if (BucketOf(id) == 5) ids.push_back(id);
  }
  return ids;
}

TEST(PlanTest, TheHashCanBeUndone) {
  for (const int64_t id : {int64_t{0}, int64_t{-1}, int64_t{77}, INT64_MIN, INT64_MAX})
    EXPECT_EQ(IdOfHash(HashId(id)), id);
}

TEST(PlanTest, IdsThatAgreeInHalfOfTheirHashStayApart) {
  std::vector<int64_t> ids = LookAlikes();
  ids.insert(ids.end(), ids.begin(), ids.begin() + 10);
  const std::set<int64_t> distinct(ids.begin(), ids.end());
  const Plan plan = PlanOf(ids);
  EXPECT_EQ(plan.num_unique(), static_cast<int64_t>(distinct.size()));
  ExpectWhole(plan, ids);
  FirstSeen seen;
  for (const int64_t id : ids) seen.NumberOf(id);
  EXPECT_EQ(seen.ids().size(), distinct.size());
}

// Sizes on both sides of one part and several, and of 2^16 ids in one part.
TEST(PlanTest, PlansAreAsDefinedWhateverTheirSizeTablesAndThreads) {
  std::mt19937_64 random(7);
  const int threads_before = NumThreads();
  for (const int threads : {1, 3}) {
    SetNumThreads(threads);
    for (const size_t size : {0, 1, 300, 20000, 90000}) {
      for (const std::vector<double>& ends : std::vector<std::vector<double>>{{1}, {0, 0.3, 0.3, 0.31, 1, 1}}) {
        std::vector<int64_t> ids(size), splits = {0};
        std::vector<uint16_t> buckets(size);
        for (const double end : ends) splits.push_back(static_cast<int64_t>(end * static_cast<double>(size)));
        for (size_t i = 0; i < size; ++i) {
          // Two of three are the same few; seven of eight lie in one part, for which 16 bits are eventually too few.
          const bool is_common = random() % 3 != 0;
          ids[i] = static_cast<int64_t>(random() % (is_common ? 50 : 4000));
          buckets[i] = static_cast<uint16_t>(random() % 8 != 0 ? 5 + ids[i] % 2 : random() % kNumBuckets);
        }
        for (const bool dedup : {true, false}) {
          ExpectPlain(MakePlan(ids, splits, dedup), ids, splits, {});
          if (dedup || size <= 300) ExpectPlain(MakePlan(ids, splits, dedup, buckets), ids, splits, buckets);
        }
      }
    }
  }
  SetNumThreads(threads_before);
}

TEST(PlanTest, IdsThatChangeMeanwhileGiveThePlanOfWhatWasRead) {
  const int64_t last =
      IdsInBuckets(1, kNumBuckets - 1, kNumBuckets)[0];  // if read twice, more of these would be written past the end
  std::span<int64_t> ids;
  FirstTouch memory(1, [&] { std::fill_n(ids.begin(), ids.size() / 2, last); });
  ids = memory.As<int64_t>();
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i % 300);
  const std::vector<int64_t> as_read(ids.begin(), ids.end());
  memory.Arm();
  const Plan plan = PlanOf(ids);
  EXPECT_TRUE(memory.was_touched());
  EXPECT_EQ(plan.num_unique(), 300);
  ExpectWhole(plan, as_read);
}

TEST(PlanTest, GivenBucketsSayWhereIdsAre) {
  const std::vector<int64_t> ids = {-5, 7, -5, 7, -5};
  const std::vector<uint16_t> buckets = {3, 1023, 4, 1023, 3};
  const std::vector<int64_t> splits = {0, 5};
  for (const bool dedup : {true, false}) {
    const Plan plan = MakePlan(ids, splits, dedup, buckets);
    EXPECT_EQ(plan.num_unique(), dedup ? 3 : 5) << "equal ids of two buckets are two";
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto place = static_cast<size_t>(plan.inverse[i]);
      EXPECT_EQ(plan.unique[place], ids[i]);
      EXPECT_EQ(plan.buckets[place], buckets[i]);
      EXPECT_GE(plan.inverse[i], plan.splits[buckets[i]]);
      EXPECT_LT(plan.inverse[i], plan.splits[buckets[i] + 1]);
    }
  }
  EXPECT_THROW(MakePlan(ids, splits, true, std::vector<uint16_t>{0, 0, 1024, 0, 0}), Error);
  EXPECT_THROW(MakePlan(ids, splits, true, std::vector<uint16_t>{0}), Error);
  EXPECT_EQ(MakePlan(ids, splits, true).BucketsFrom(0), nullptr);
}

TEST(PlanTest, IsOfItsOwnIdsAlone) {
  std::mt19937_64 random(7);
  std::vector<int64_t> ids = Draw(&random, 20'000, SpreadIds(3'000));
  for (const int threads : {1, 4}) {
    SetNumThreads(threads);
    const Plan plan = PlanOf(ids);
    EXPECT_TRUE(IsPlanOf(plan, ids));
    EXPECT_FALSE(IsPlanOf(plan, std::span(ids).first(ids.size() - 1)));
    for (const size_t changed : {size_t{0}, ids.size() / 2, ids.size() - 1}) {
      std::vector<int64_t> others = ids;
      others[changed] ^= int64_t{1} << 63;
      EXPECT_FALSE(IsPlanOf(plan, others)) << changed;
    }
    std::vector<int64_t> longer = ids;
    longer.push_back(ids[0]);
    EXPECT_FALSE(IsPlanOf(plan, longer));
  }
  EXPECT_TRUE(IsPlanOf(PlanOf({}), {}));
}

}  // namespace
}  // namespace monolith
