#include "device/kernels/index.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <unordered_map>
#include <vector>

#include "device/table_for_test.h"

namespace monolith::device {
namespace {

class IndexKernelsTest : public LauncherTest {
 protected:
  PlanForTest PlanOf(const std::vector<int64_t>& ids, const std::vector<uint16_t>& buckets = {}) {
    return MakeDevicePlan(launcher(), ids, std::vector<int64_t>{0, static_cast<int64_t>(ids.size())}, buckets);
  }
};

std::vector<int64_t> Range(int64_t begin, int64_t end) {
  std::vector<int64_t> ids;
  for (int64_t id = begin; id < end; ++id) ids.push_back(id * 0x100000001ll);
  return ids;
}

TEST_P(IndexKernelsTest, InsertedRowsAreFoundUnderTheirKeys) {
  TableForTest table(4, 4, 5);
  TablesForTest tables(launcher(), {&table});
  std::vector<int64_t> ids = {0, -1, 1, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
  for (const uint64_t hash : {uint64_t{0}, kFreeWord, kErasedWord}) ids.push_back(IdOfHash(hash));
  const PlanForTest plan = PlanOf(ids);
  for (const uint32_t row : tables.Find(plan)) EXPECT_EQ(row, kNoRow);
  const Shared<uint32_t> rows = tables.FindOrInsert(plan, 77);
  for (uint32_t u = 0; u < rows.size(); ++u) {
    EXPECT_EQ(rows[u], u) << "new rows are numbered in plan order";
    const RowHeader& header = *table.view().HeaderAt(rows[u]);
    EXPECT_EQ(header.key, plan.unique[u]);
    EXPECT_TRUE(IsLive(header));
    EXPECT_EQ(FrequencyOf(header), 0u);
    EXPECT_EQ(EpochOf(header), 77u);
    EXPECT_EQ(header.time, 0u);
  }
  EXPECT_EQ(tables.Find(plan), rows);
  EXPECT_EQ(tables.FindOrInsert(plan), rows) << "nothing is inserted twice";
  EXPECT_EQ(table.counters().next_row, ids.size());
}

TEST_P(IndexKernelsTest, RefusedUpdatesInsertNothing) {
  TableForTest table(4, 4, 5);
  TablesForTest tables(launcher(), {&table});
  const PlanForTest plan = PlanOf(Range(0, 20));
  for (const uint32_t row : tables.FindOrInsert(plan, 1, 1)) EXPECT_EQ(row, kNoRow);
  EXPECT_EQ(table.counters().next_row, 0u);
  for (const uint32_t row : tables.Find(plan)) EXPECT_EQ(row, kNoRow);
}

TEST_P(IndexKernelsTest, RowsWithEqualTagsAreToldApartByTheirKeys) {
  std::vector<int64_t> ids;
  for (uint64_t low = 0; low < 64; ++low) ids.push_back(IdOfHash(uint64_t{0x12345678} << 32 | low * 0x1234567));
  TableForTest table(4, 4, 5);
  TablesForTest tables(launcher(), {&table});
  const PlanForTest first = PlanOf({ids.begin(), ids.begin() + 32}), all = PlanOf(ids);
  const Shared<uint32_t> rows = tables.FindOrInsert(first);
  EXPECT_EQ(std::set<uint32_t>(rows.begin(), rows.end()).size(), 32u);
  Shared<uint32_t> found = tables.Find(all);
  for (size_t u = 0; u < 64; ++u) EXPECT_EQ(found[u], u < 32 ? rows[u] : kNoRow);
}

TEST_P(IndexKernelsTest, EqualKeysOfTwoBucketsAreTwoRows) {
  TableForTest table(4, 4, 5);
  TablesForTest tables(launcher(), {&table});
  const PlanForTest plan = PlanOf({-5, -5, -5}, {3, 1023, 3});
  const Shared<uint32_t> rows = tables.FindOrInsert(plan);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_NE(rows[0], rows[1]);
  EXPECT_EQ(tables.Find(PlanOf({-5}, {1023}))[0], rows[1]);
  EXPECT_EQ(tables.Find(PlanOf({-5}, {4}))[0], kNoRow);
  for (uint32_t segment = 0; segment < kNumSegments; ++segment) tables.Rehash(0, segment, 7);
  EXPECT_EQ(tables.Find(plan), rows) << "a rehash reads the bucket from the word";
}

TEST_P(IndexKernelsTest, BucketsOfRowsAreThoseOfTheirKeysOrKept) {
  TableForTest narrow(4, 4, 5), wide(4, 4, 5, true);
  for (TableForTest* table : {&narrow, &wide}) {
    TablesForTest tables(launcher(), {table});
    const std::vector<int64_t> ids = Range(0, 40);
    std::vector<uint16_t> buckets;
    for (const int64_t id : ids) buckets.push_back(static_cast<uint16_t>(BucketOf(id) ^ (table == &wide ? 1023 : 0)));
    const PlanForTest plan = PlanOf(ids, buckets);
    const Shared<uint32_t> rows = tables.FindOrInsert(plan);
    ASSERT_EQ(rows.size(), 40u);
    for (uint32_t u = 0; u < rows.size(); ++u) EXPECT_EQ(table->view().BucketOfRow(rows[u]), plan.buckets[u]);
  }
}

TEST_P(IndexKernelsTest, ErasedRowsAreGoneAndTheirNumbersAreUsedAgain) {
  TableForTest table(4, 4, 6);
  TablesForTest tables(launcher(), {&table});
  const PlanForTest old_ids = PlanOf(Range(0, 300)), erased = PlanOf(Range(100, 200)),
                    fresh = PlanOf(Range(1000, 1150));
  tables.FindOrInsert(old_ids);
  tables.Erase(erased);
  tables.Erase(erased);  // ids without a row are ignored
  EXPECT_EQ(table.counters().num_free, 100u);
  for (const uint32_t row : tables.Find(erased)) EXPECT_EQ(row, kNoRow);
  uint32_t num_live = 0;
  for (uint32_t row = 0; row < 300; ++row) num_live += IsLive(*table.view().HeaderAt(row));
  EXPECT_EQ(num_live, 200u);
  const Shared<uint32_t> rows = tables.FindOrInsert(fresh);
  EXPECT_EQ(table.counters().num_free, 0u);
  EXPECT_EQ(table.counters().next_row, 350u);
  std::set<uint32_t> used(rows.begin(), rows.end());
  for (const uint32_t row : tables.Find(old_ids)) {
    if (row == kNoRow) continue;
    EXPECT_TRUE(used.insert(row).second) << row;
  }
  EXPECT_EQ(used.size(), 350u);
}

TEST_P(IndexKernelsTest, SearchesPassErasedPlacesThatLookLikeTheirTag) {
  std::vector<int64_t> ids;  // whose tag is that of an erased place
  for (uint64_t low = 0; low < 64; ++low) ids.push_back(IdOfHash(kErasedWord >> 32 << 32 | low * 0x1234567));
  TableForTest table(4, 4, 3);
  TablesForTest tables(launcher(), {&table});
  const PlanForTest erased = PlanOf({ids.begin(), ids.begin() + 32}), kept = PlanOf({ids.begin() + 32, ids.end()});
  tables.FindOrInsert(erased);
  const Shared<uint32_t> rows = tables.FindOrInsert(kept);
  tables.Erase(erased);
  EXPECT_EQ(tables.Find(kept), rows);
  for (const uint32_t row : tables.Find(erased)) EXPECT_EQ(row, kNoRow);
}

TEST_P(IndexKernelsTest, RowsFoundBeforeAreKeptWhereTheyAreStillTheIds) {
  TableForTest table(4, 4, 5, true);
  TablesForTest tables(launcher(), {&table});
  const auto find_again = [&](const PlanForTest& plan, Shared<uint32_t> rows) {
    tables.Launch(rows.size(), FindRowsAgain{plan.ids(), tables.tables(), rows.data()});
    return rows;
  };
  const PlanForTest first = PlanOf({-5, -6, -7}, {3, 3, 3});
  const Shared<uint32_t> rows = tables.FindOrInsert(first);
  EXPECT_EQ(find_again(first, rows), rows);
  EXPECT_EQ(find_again(first, {kNoRow, kNoRow, kNoRow}), rows) << "inserted since";
  EXPECT_EQ(find_again(first, {rows[1], rows[2], 1000}), rows) << "numbers of other rows, and of none";
  tables.Erase(PlanOf({-5}, {3}));
  const std::vector<uint32_t> without = {kNoRow, rows[1], rows[2]};
  EXPECT_EQ(find_again(first, rows), Shared<uint32_t>(without.begin(), without.end()));
  // Its number goes to a row of the same key in another bucket.
  ASSERT_EQ(tables.FindOrInsert(PlanOf({-5}, {1023}))[0], rows[0]);
  EXPECT_EQ(find_again(first, rows), Shared<uint32_t>(without.begin(), without.end()));
}

TEST_P(IndexKernelsTest, AFullSegmentLosesNoRowThatItHas) {
  TableForTest table(4, 4, 1);  // 32 words
  TablesForTest tables(launcher(), {&table});
  const PlanForTest plan = PlanOf(Range(0, 200));
  const Shared<uint32_t> rows = tables.FindOrInsert(plan);
  uint32_t num_lost = 0;
  for (size_t u = 0; u < rows.size(); ++u) {
    num_lost += rows[u] == kNoRow;
    if (rows[u] == kNoRow) continue;
    EXPECT_EQ(table.view().HeaderAt(rows[u])->key, plan.unique[u]);
  }
  EXPECT_EQ(num_lost, 168u);
  EXPECT_EQ(table.counters().num_lost, num_lost);
  EXPECT_EQ(tables.Find(plan), rows) << "searches end in full segments";
  uint32_t num_live = 0;
  for (uint32_t row = 0; row < table.counters().next_row; ++row) num_live += IsLive(*table.view().HeaderAt(row));
  EXPECT_EQ(num_live, 32u);
  for (uint32_t segment = 0; segment < kNumSegments; ++segment) {
    EXPECT_EQ(tables.Count(0, segment), (std::pair<uint32_t, uint32_t>{2, 0}));
    tables.Rehash(0, segment, 6);
  }
  EXPECT_EQ(tables.Find(plan), rows);
}

TEST_P(IndexKernelsTest, RowsOfSeveralTablesAreNumberedInEachInPlanOrder) {
  TableForTest first(4, 4, 6), second(8, 3, 6), third(4, 2, 6);
  TablesForTest tables(launcher(), {&first, &second, &third});
  std::vector<int64_t> ids = Range(0, 300);
  for (const int64_t id : Range(100, 500)) ids.push_back(id);
  const PlanForTest plan = MakeDevicePlan(launcher(), ids, std::vector<int64_t>{0, 300, 700, 700}, {});
  const Shared<uint32_t> rows = tables.FindOrInsert(plan);
  uint32_t next[3] = {};
  for (uint32_t u = 0; u < rows.size(); ++u) {
    const uint32_t table = plan.ids().TableAt(u);
    ASSERT_EQ(rows[u], next[table]++);
    ASSERT_EQ((table == 0 ? first : second).view().HeaderAt(rows[u])->key, plan.unique[u]);
  }
  EXPECT_EQ(first.counters().next_row, 300u);
  EXPECT_EQ(second.counters().next_row, 400u);
  EXPECT_EQ(third.counters().next_row, 0u);
  EXPECT_EQ(tables.Find(plan), rows);
}

// Random changes against a map, with segments that double one at a time and erased places that are cleared away.
TEST_P(IndexKernelsTest, BehavesAsAMapWhileItGrows) {
  std::mt19937_64 random(5);
  TableForTest table(4, 6, 2);
  TablesForTest tables(launcher(), {&table});
  std::unordered_map<int64_t, uint32_t> expected;
  for (int step = 0; step < 30; ++step) {
    std::vector<int64_t> ids(400);
    for (int64_t& id : ids) id = static_cast<int64_t>(Mix64(random() % 6000));
    const PlanForTest plan = PlanOf(ids);
    for (uint32_t segment = 0; segment < kNumSegments; ++segment) {
      const auto [num_live, num_erased] = tables.Count(0, segment);
      uint32_t bits = table.view().segment_bits[segment];
      while (num_live + 100 > 3u << bits >> 2) ++bits;
      if (num_live + num_erased + 100 > 3u << table.view().segment_bits[segment] >> 2) tables.Rehash(0, segment, bits);
    }
    if (step % 3 == 2) {
      tables.Erase(plan);
      for (const int64_t id : plan.unique) expected.erase(id);
    } else {
      const Shared<uint32_t> rows = tables.FindOrInsert(plan);
      for (size_t u = 0; u < rows.size(); ++u) {
        const auto [found, is_new] = expected.try_emplace(plan.unique[u], rows[u]);
        ASSERT_EQ(found->second, rows[u]) << (is_new ? "new" : "moved");
      }
    }
    std::vector<int64_t> all = Range(0, 50);  // most of which have no row
    for (const auto& [id, row] : expected) all.push_back(id);
    const PlanForTest every = PlanOf(all);
    const Shared<uint32_t> rows = tables.Find(every);
    for (size_t u = 0; u < rows.size(); ++u) {
      const auto found = expected.find(every.unique[u]);
      ASSERT_EQ(rows[u], found == expected.end() ? kNoRow : found->second);
    }
  }
  EXPECT_EQ(table.counters().num_lost, 0u);
  EXPECT_EQ(table.counters().next_row - table.counters().num_free, expected.size());
}

INSTANTIATE_FOR_LAUNCHERS(IndexKernelsTest);

}  // namespace
}  // namespace monolith::device
