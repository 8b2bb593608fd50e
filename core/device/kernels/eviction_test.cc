#include "device/kernels/eviction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "device/rows_for_test.h"

namespace monolith::device {
namespace {

constexpr int64_t kNow = RowsForTest::kNow, kDay = RowsForTest::kDay;

constexpr RowsOptions kKinds[] = {
    {.count = 0},
    {.count = 1},
    {.count = 5000},
    {.count = 5000, .erase_every = 3},
    {.count = 700, .keys = KeysForTest::kOneBucket, .erase_every = 7},
    {.count = 5000, .keys = KeysForTest::kWide, .erase_every = 5},
};

// The rows that a kernel adds to a list with this many places.
class ListForTest {
 public:
  explicit ListForTest(uint32_t most) : items_(most + 1, 12345), most_(most) {}
  OpenList view() { return {most_, used_.data(), items_.data()}; }
  uint32_t used() const { return used_[0]; }
  std::vector<uint32_t> Sorted() const {
    std::vector<uint32_t> sorted(items_.begin(), items_.begin() + std::min(most_, used()));
    std::sort(sorted.begin(), sorted.end());
    EXPECT_TRUE(std::all_of(items_.begin() + static_cast<ptrdiff_t>(sorted.size()), items_.end(),
                            [](uint32_t item) { return item == 12345; }));
    return sorted;
  }

 private:
  Shared<uint32_t> items_, used_ = Shared<uint32_t>(1);
  const uint32_t most_;
};

// Days of slots and wide slots of a table.
struct SlotsForTest {
  SlotsForTest() : days(kNumSlots + 1, 7) {
    for (uint32_t slot = 0; slot < kNumSlots; slot += 2) days[slot] = slot % 12;
    days[kNumSlots] = 3;
  }
  // The slot of a key that MakeIds() has made.
  uint32_t Of(int64_t key, bool has_wide_keys) const {
    if (!has_wide_keys || key >= 0) return static_cast<uint32_t>(key >> 48) & 0x7fff;
    const auto index = static_cast<uint32_t>(key >> 54) & 511;
    return index < wide.size() ? static_cast<uint32_t>(wide[index]) : kNumSlots;
  }
  KeySlots view(bool has_wide_keys) const {
    return {has_wide_keys ? wide.data() : nullptr, has_wide_keys ? static_cast<uint32_t>(wide.size()) : 0};
  }

  Shared<uint32_t> days;
  Shared<int32_t> wide = {4, 11, 30000};  // fewer than there are indices in keys
};

class EvictionKernelsTest : public LauncherTest {
 protected:
  template <typename Kernel>
  void Run(const Kernel& kernel) {
    Launch(kernel.NumThreads(), kernel);
  }

  // Scores of live rows, as SelectThreshold() of table/group_write.cc looks at them.
  static std::vector<uint32_t> Scores(const RowsForTest& rows, bool by_frequency) {
    std::vector<uint32_t> scores;
    for (const uint32_t row : rows.LiveRows()) {
      const RowHeader& header = rows.HeaderAt(row);
      scores.push_back(by_frequency ? FrequencyOf(header) << 25 | header.time >> 7 : header.time);
    }
    return scores;
  }
};

template <typename IsWanted>
std::vector<uint32_t> LiveRowsOf(const RowsForTest& rows, IsWanted&& is_wanted) {
  std::vector<uint32_t> wanted;
  for (const uint32_t row : rows.LiveRows()) {
    if (is_wanted(rows.HeaderAt(row), row)) wanted.push_back(row);
  }
  return wanted;
}

TEST_P(EvictionKernelsTest, ExpiredRowsAreListed) {
  const SlotsForTest slots;
  for (const RowsOptions& options : kKinds) {
    const bool is_wide = options.keys == KeysForTest::kWide;
    RowsForTest rows(launcher(), options);
    for (const bool by_slot : {false, true}) {
      ListForTest list(rows.num_rows());
      const Expiry expiry = {kNow, 5, by_slot ? slots.days.data() : nullptr, slots.view(is_wide)};
      Run(FlagExpired{rows.tables.tables(), 0, rows.num_rows(), {nullptr}, expiry, list.view()});
      const auto has_expired = [&](const RowHeader& row, uint32_t) {
        const int64_t days = by_slot ? slots.days[slots.Of(row.key, is_wide)] : 5;
        return kNow - row.time >= days * kDay;
      };
      const std::vector<uint32_t> expected = LiveRowsOf(rows, has_expired);
      EXPECT_TRUE(options.count <= 1 || !expected.empty());
      EXPECT_EQ(list.Sorted(), expected);
      EXPECT_EQ(list.used(), expected.size());
    }
  }
}

TEST_P(EvictionKernelsTest, OnlySomeBucketsAreLookedAt) {
  const std::set<uint32_t> looked_at = {0, 5, 63, 64, 700, 1023};
  const Shared<uint32_t> buckets = SetOfBuckets({looked_at.begin(), looked_at.end()});
  for (const RowsOptions& options : kKinds) {
    RowsForTest rows(launcher(), options);
    const PlanForTest plan = rows.PlanOf(MakeIds(options.count, options.keys));
    const Shared<uint32_t> found = rows.tables.Find(plan);
    std::vector<uint32_t> expected;
    for (size_t u = 0; u < found.size(); ++u) {
      if (found[u] != kNoRow && looked_at.contains(plan.buckets[u])) expected.push_back(found[u]);
    }
    std::sort(expected.begin(), expected.end());
    ListForTest list(rows.num_rows());
    const Expiry all = {kNow + 100 * kDay, 5, nullptr, {nullptr, 0}};
    Run(FlagExpired{rows.tables.tables(), 0, rows.num_rows(), {buckets.data()}, all, list.view()});
    EXPECT_EQ(list.Sorted(), expected);
  }
}

TEST_P(EvictionKernelsTest, AListMayBeTooShort) {
  RowsForTest rows(launcher(), {.count = 5000});
  const Expiry all = {kNow + 100 * kDay, 5, nullptr, {nullptr, 0}};
  for (const uint32_t most : {5000u, 4999u, 1u, 0u}) {
    ListForTest list(most);
    Run(FlagExpired{rows.tables.tables(), 0, rows.num_rows(), {nullptr}, all, list.view()});
    const std::vector<uint32_t> listed = list.Sorted();
    EXPECT_EQ(listed.size(), most);
    EXPECT_TRUE(std::adjacent_find(listed.begin(), listed.end()) == listed.end());
    EXPECT_EQ(list.used(), 5000u) << "tells how many there are";
  }
}

TEST_P(EvictionKernelsTest, ScoresAreCountedByHalves) {
  for (const RowsOptions& options : kKinds) {
    RowsForTest rows(launcher(), options);
    for (const bool by_frequency : {false, true}) {
      Shared<uint32_t> upper(kNumHalfScores), lower(kNumHalfScores), expected(kNumHalfScores), in_half(kNumHalfScores);
      const std::vector<uint32_t> scores = Scores(rows, by_frequency);
      const uint32_t half = scores.empty() ? 0 : scores[scores.size() / 2] >> 16;
      for (const uint32_t score : scores) {
        ++expected[score >> 16];
        if (score >> 16 == half) ++in_half[score & 0xffff];
      }
      Run(CountScores{rows.tables.tables(), 0, rows.num_rows(), by_frequency, kAllHalves, upper.data()});
      Run(CountScores{rows.tables.tables(), 0, rows.num_rows(), by_frequency, half, lower.data()});
      EXPECT_EQ(upper, expected);
      EXPECT_EQ(lower, in_half);
    }
  }
}

TEST_P(EvictionKernelsTest, RowsWithTheLowestScoresAreListed) {
  for (const RowsOptions& options : kKinds) {
    RowsForTest rows(launcher(), options);
    for (const bool by_frequency : {false, true}) {
      std::vector<uint32_t> scores = Scores(rows, by_frequency);
      std::sort(scores.begin(), scores.end());
      for (const size_t rank : {size_t{1}, scores.size() / 3, scores.size()}) {
        if (rank == 0 || rank > scores.size()) continue;
        const uint32_t score = scores[rank - 1];
        const auto num_below =
            static_cast<uint32_t>(std::lower_bound(scores.begin(), scores.end(), score) - scores.begin());
        ListForTest list(rows.num_rows());
        Shared<uint32_t> ties_seen(1);
        Run(ListBelowScore{rows.tables.tables(), 0, rows.num_rows(), by_frequency, score,
                           static_cast<uint32_t>(rank) - num_below, ties_seen.data(), list.view()});
        const std::vector<uint32_t> listed = list.Sorted();
        EXPECT_EQ(listed.size(), rank);
        EXPECT_TRUE(std::adjacent_find(listed.begin(), listed.end()) == listed.end());
        std::vector<uint32_t> found;
        for (const uint32_t row : listed) {
          ASSERT_TRUE(IsLive(rows.HeaderAt(row)));
          found.push_back(by_frequency ? FrequencyScoreOf(rows.HeaderAt(row)) : RecencyScoreOf(rows.HeaderAt(row)));
        }
        std::sort(found.begin(), found.end());
        EXPECT_EQ(found, std::vector<uint32_t>(scores.begin(), scores.begin() + static_cast<ptrdiff_t>(rank)));
      }
    }
  }
}

TEST_P(EvictionKernelsTest, OfEqualRowsAsManyGoAsShould) {
  RowsForTest rows(launcher(), {.count = 5000});
  for (uint32_t row = 0; row < 5000; ++row) {
    *rows.table.view().HeaderAt(row) = {rows.HeaderAt(row).key, 1000u, MakeMeta(5, 1)};
  }
  for (const uint32_t num_ties : {0u, 1u, 2500u, 4999u, 5000u}) {
    ListForTest list(5000);
    Shared<uint32_t> ties_seen(1);
    Run(ListBelowScore{rows.tables.tables(), 0, 5000, false, 1000, num_ties, ties_seen.data(), list.view()});
    EXPECT_EQ(list.Sorted().size(), num_ties);
  }
}

TEST_P(EvictionKernelsTest, ErasedRowsAreGoneAndTold) {
  for (const RowsOptions& options : kKinds) {
    RowsForTest rows(launcher(), options);
    const PlanForTest plan = rows.PlanOf(MakeIds(options.count, options.keys));
    const Shared<uint32_t> before = rows.tables.Find(plan);
    const uint32_t num_free = rows.table.counters().num_free;
    Shared<uint32_t> list;
    std::set<std::pair<int64_t, uint32_t>> expected, told;
    for (size_t u = 0; u < before.size(); u += 2) {
      if (before[u] == kNoRow) continue;
      list.push_back(before[u]);
      expected.emplace(plan.unique[u], plan.buckets[u]);
    }
    const auto count = static_cast<uint32_t>(list.size());
    list.resize(count + 10, 12345);
    const Shared<uint32_t> used = {count};
    Shared<int64_t> keys(count + 10, 777);
    Shared<uint16_t> buckets(count + 10, 55555);
    Run(EraseListed{rows.tables.tables(), RowsOfTable(0, list.data(), count + 10, used.data()), keys.data(),
                    buckets.data()});
    for (uint32_t i = 0; i < count; ++i) told.emplace(keys[i], buckets[i]);
    EXPECT_EQ(told, expected);
    EXPECT_EQ(told.size(), count);
    EXPECT_EQ(keys[count], 777);
    EXPECT_EQ(buckets[count], 55555);
    const Shared<uint32_t> after = rows.tables.Find(plan);
    for (size_t u = 0; u < after.size(); ++u) ASSERT_EQ(after[u], u % 2 == 0 ? kNoRow : before[u]);
    EXPECT_EQ(rows.table.counters().num_free, num_free + count);
    rows.Add(MakeIds(options.count, options.keys));
    EXPECT_EQ(rows.num_rows(), options.count) << "numbers of erased rows are used again";
    EXPECT_EQ(rows.LiveRows().size(), options.count);
    const Shared<uint32_t> again = rows.tables.Find(plan);
    EXPECT_EQ(std::set<uint32_t>(again.begin(), again.end()).size(), options.count);
  }
}

TEST_P(EvictionKernelsTest, RowsAreCountedBySlot) {
  const SlotsForTest slots;
  for (const RowsOptions& options : kKinds) {
    const bool is_wide = options.keys == KeysForTest::kWide;
    RowsForTest rows(launcher(), options);
    Shared<uint32_t> counts(kNumSlots + 1), expected(kNumSlots + 1);
    for (const uint32_t row : rows.LiveRows()) ++expected[slots.Of(rows.HeaderAt(row).key, is_wide)];
    Run(CountBySlot{rows.tables.tables(), 0, rows.num_rows(), slots.view(is_wide), counts.data()});
    EXPECT_EQ(counts, expected);
    EXPECT_EQ(counts[kNumSlots] != 0, is_wide);
  }
}

// More than a block of threads that take turns.
TEST_P(EvictionKernelsTest, EveryRowOfALargeTableIsSeenOnce) {
  constexpr uint32_t kCount = kTurnsOfCounts * kBlock + 3000;
  RowsForTest rows(launcher(), {.count = kCount});
  Shared<uint32_t> counts(kNumSlots + 1);
  Run(CountBySlot{rows.tables.tables(), 0, kCount, {nullptr, 0}, counts.data()});
  for (uint32_t slot = 0; slot < 40; ++slot) EXPECT_EQ(counts[slot], kCount / 40 + (slot < kCount % 40));
  ListForTest list(kCount);
  const Expiry all = {kNow + 100 * kDay, 5, nullptr, {nullptr, 0}};
  Run(FlagExpired{rows.tables.tables(), 0, kCount, {nullptr}, all, list.view()});
  EXPECT_EQ(list.Sorted(), rows.LiveRows());
  ListForTest most(kCount);
  Run(FlagExpired{rows.tables.tables(), 0, kCount - 1000, {nullptr}, all, most.view()});
  EXPECT_EQ(most.used(), kCount - 1000);
}

INSTANTIATE_FOR_LAUNCHERS(EvictionKernelsTest);

}  // namespace
}  // namespace monolith::device
