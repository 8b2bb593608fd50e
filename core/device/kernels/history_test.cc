#include "device/kernels/history.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "device/rows_for_test.h"

namespace monolith::device {
namespace {

using RowsByBucket = std::vector<std::vector<uint32_t>>;

constexpr RowsOptions kKinds[] = {
    {.count = 0},
    {.count = 1},
    {.count = 3000},
    {.count = 3000, .erase_every = 3},
    {.count = 700, .keys = KeysForTest::kOneBucket, .erase_every = 7},
    {.count = 3000, .keys = KeysForTest::kWide, .erase_every = 5},
};

class HistoryKernelsTest : public LauncherTest {};

// The buckets of rows are asked from a plan of their ids, not from the rows.
RowsByBucket AllByBucket(RowsForTest& rows, const RowsOptions& options) {
  const PlanForTest plan = rows.PlanOf(MakeIds(options.count, options.keys));
  const Shared<uint32_t> found = rows.tables.Find(plan);
  RowsByBucket all(kNumBuckets);
  for (size_t u = 0; u < found.size(); ++u) {
    if (found[u] != kNoRow) all[plan.buckets[u]].push_back(found[u]);
  }
  for (auto& each : all) std::sort(each.begin(), each.end());
  return all;
}

template <typename Wanted>
RowsByBucket Filter(const RowsByBucket& all, Wanted&& is_wanted) {
  RowsByBucket kept(kNumBuckets);
  for (uint32_t bucket = 0; bucket < kNumBuckets; ++bucket) {
    for (const uint32_t row : all[bucket]) {
      if (is_wanted(bucket, row)) kept[bucket].push_back(row);
    }
  }
  return kept;
}

TEST_P(HistoryKernelsTest, RowsOfSomeEpochsAreListedByBucket) {
  constexpr uint32_t kRanges[][2] = {{0, kMaxRowEpoch}, {0, 0}, {1, 5}, {6, 7}, {kMaxRowEpoch, kMaxRowEpoch}, {2, 4}};
  for (const RowsOptions& options : kKinds) {
    RowsForTest rows(launcher(), options);
    const RowsByBucket all = AllByBucket(rows, options);
    for (const auto& [first, last] : kRanges) {
      RowSelection selection = AllRows();
      selection.first_epoch = first;
      selection.last_epoch = last;
      EXPECT_EQ(ListRows(rows, selection, rows.num_rows()),
                Filter(all,
                       [&, first = first, last = last](uint32_t, uint32_t row) {
                         const uint32_t epoch = EpochOf(rows.HeaderAt(row));
                         return first <= epoch && epoch <= last;
                       }))
          << options.count << " " << first << " " << last;
    }
  }
}

TEST_P(HistoryKernelsTest, RowsOfSomeBucketsAreListed) {
  constexpr uint32_t kRanges[][2] = {{0, 1024}, {5, 5}, {0, 1}, {100, 701}, {701, 1024}, {1023, 1024}};
  const Shared<uint32_t> skipped = SetOfBuckets({0, 31, 32, 500, 501, 502, 1023});
  const auto is_skipped = [](uint32_t bucket) {
    return bucket == 0 || bucket == 31 || bucket == 32 || (bucket >= 500 && bucket <= 502) || bucket == 1023;
  };
  for (const RowsOptions& options : kKinds) {
    RowsForTest rows(launcher(), options);
    const RowsByBucket all = AllByBucket(rows, options);
    for (const auto& [begin, end] : kRanges) {
      for (const bool skips : {false, true}) {
        RowSelection selection = AllRows();
        selection.first_bucket = begin;
        selection.end_bucket = end;
        if (skips) selection.skip_buckets = {skipped.data()};
        EXPECT_EQ(ListRows(rows, selection, rows.num_rows()),
                  Filter(all,
                         [&, begin = begin, end = end](uint32_t bucket, uint32_t) {
                           return bucket >= begin && bucket < end && !(skips && is_skipped(bucket));
                         }))
            << options.count << " " << begin << " " << end;
      }
    }
  }
}

TEST_P(HistoryKernelsTest, ExpiredRowsAreLeftOutOnDemand) {
  const RowsOptions options = {.count = 3000, .erase_every = 4};
  RowsForTest rows(launcher(), options);
  RowSelection selection = AllRows();
  selection.drops_expired = true;
  selection.expiry = {RowsForTest::kNow, 5, nullptr, {nullptr, 0}};
  const auto lives = [&](uint32_t, uint32_t row) {
    return int64_t{RowsForTest::kNow} - rows.HeaderAt(row).time < 5 * int64_t{RowsForTest::kDay};
  };
  const RowsByBucket expected = Filter(AllByBucket(rows, options), lives);
  EXPECT_NE(expected, AllByBucket(rows, options));
  EXPECT_EQ(ListRows(rows, selection, rows.num_rows()), expected);
}

TEST_P(HistoryKernelsTest, NumbersThatNoRowEverHadAreNotLookedAt) {
  RowsForTest rows(launcher(), {.count = 100});
  const RowsByBucket all = ListRows(rows, AllRows(), 100);
  rows.table.Reserve(1000);
  for (uint32_t row = 100; row < 1000; ++row) *rows.table.view().HeaderAt(row) = {7, 8, MakeMeta(1, 1)};
  EXPECT_EQ(ListRows(rows, AllRows(), 1000), all);
  EXPECT_EQ(ListRows(rows, AllRows(), 40), Filter(all, [](uint32_t, uint32_t row) { return row < 40; }));
}

TEST_P(HistoryKernelsTest, EpochsAreShiftedInLiveRowsOnly) {
  const EpochShift shifts[] = {{0}, {5}, {6, 5}, {kMaxRowEpoch}, {kMaxRowEpoch / 2, 6}};
  for (const EpochShift& shift : shifts) {
    for (const RowsOptions& options : kKinds) {
      RowsForTest rows(launcher(), options);
      std::vector<RowHeader> before;
      for (uint32_t row = 0; row < rows.num_rows(); ++row) before.push_back(rows.HeaderAt(row));
      const ShiftEpochs kernel{rows.tables.tables(), 0, rows.num_rows(), shift};
      Launch(kernel.NumThreads(), kernel);
      for (uint32_t row = 0; row < rows.num_rows(); ++row) {
        const RowHeader &old = before[row], &now = rows.HeaderAt(row);
        ASSERT_EQ(now.key, old.key);
        ASSERT_EQ(now.time, old.time);
        ASSERT_EQ(now.meta & 255, old.meta & 255) << "live and frequency";
        ASSERT_EQ(EpochOf(now), IsLive(old) ? shift.Of(EpochOf(old)) : EpochOf(old));
      }
    }
  }
}

INSTANTIATE_FOR_LAUNCHERS(HistoryKernelsTest);

}  // namespace
}  // namespace monolith::device
