#include "table/id_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "table/first_touch_for_test.h"

namespace monolith {
namespace {

using Ids = std::vector<int64_t>;

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

Ids RandomIds(std::mt19937_64* random, size_t count, uint64_t range) {
  Ids ids(count);
  for (int64_t& id : ids) id = static_cast<int64_t>((*random)() % range) - static_cast<int64_t>(range / 2);
  return ids;
}

// Returns the error of a kernel for invalid input, or "" when it does not throw.
template <typename Call>
std::string Refusal(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(UniqueTest, KeepsFirstSeenOrderAndCounts) {
  const UniqueIds unique = Unique(Ids{7, kMin, 7, kMax, kMin, 7, 0});
  EXPECT_EQ(unique.ids, (Ids{7, kMin, kMax, 0}));
  EXPECT_EQ(unique.inverse, (std::vector<int32_t>{0, 1, 0, 2, 1, 0, 3}));
  EXPECT_EQ(unique.counts, (std::vector<int32_t>{3, 2, 1, 1}));
}

TEST(UniqueTest, NothingInGivesNothingOut) {
  const UniqueIds unique = Unique(Ids{});
  EXPECT_TRUE(unique.ids.empty() && unique.inverse.empty() && unique.counts.empty());
}

TEST(UniqueTest, RandomBatchesAgreeWithAMap) {
  std::mt19937_64 random(301);
  for (const size_t count : {1, 31, 33, 1000, 20'000}) {
    for (const uint64_t range : {uint64_t{1}, uint64_t{40}, uint64_t{5000}, uint64_t{1} << 62}) {
      const Ids ids = RandomIds(&random, count, range);
      const UniqueIds unique = Unique(ids);
      std::map<int64_t, int32_t> numbers;
      std::vector<int32_t> counts;
      for (size_t i = 0; i < count; ++i) {
        const auto [place, is_new] = numbers.try_emplace(ids[i], static_cast<int32_t>(numbers.size()));
        if (is_new) counts.push_back(0);
        ++counts[static_cast<size_t>(place->second)];
        ASSERT_EQ(unique.inverse[i], place->second);
        ASSERT_EQ(unique.ids[static_cast<size_t>(place->second)], ids[i]);
      }
      EXPECT_EQ(unique.ids.size(), numbers.size());
      EXPECT_EQ(unique.counts, counts);
    }
  }
}

TEST(RowIdsTest, GivesEveryValueItsRow) {
  EXPECT_EQ(RowIds(Ids{0, 2, 2, 5}), (Ids{0, 0, 2, 2, 2}));
  EXPECT_EQ(RowIds(Ids{0}), Ids{});
  EXPECT_EQ(RowIds(Ids{0, 0, 0}), Ids{});
}

TEST(RowIdsTest, RefusesWhatAreNoRowSplits) {
  EXPECT_EQ(Refusal([] { RowIds(Ids{}); }), "row_splits must hold at least one number, got none");
  EXPECT_EQ(Refusal([] { RowIds(Ids{1, 2}); }), "row_splits must start with 0, got 1");
  EXPECT_EQ(Refusal([] { RowIds(Ids{0, 3, 2}); }), "row_splits must never decrease, got 2 after 3 at 2");
  EXPECT_EQ(Refusal([] { RowIds(Ids{0, kMin}); }),
            "row_splits must never decrease, got " + std::to_string(kMin) + " after 0 at 1");
  EXPECT_NE(Refusal([] { RowIds(Ids{0, kMax}); }), "");
}

TEST(RowIdsTest, SplitsThatChangeMeanwhileGiveTheRowsOfWhatWasRead) {
  std::span<int64_t> splits;
  FirstTouch memory(1, [&] { std::fill_n(splits.begin() + 1, splits.size() / 2 - 1, int64_t{1} << 40); });
  splits = memory.As<int64_t>();
  memory.Arm();
  // A copy that starts at the end has read the changed values, which are rejected.
  const std::string refusal = Refusal([&] { EXPECT_TRUE(RowIds(splits).empty()); });
  EXPECT_TRUE(refusal.empty() || refusal.starts_with("row_splits must never decrease, got 0 after")) << refusal;
  EXPECT_TRUE(memory.was_touched());
}

TEST(GroupByIndexTest, IndicesThatChangeMeanwhileGroupAsTheyWereRead) {
  std::span<int64_t> indices;
  FirstTouch memory(1, [&] { std::fill_n(indices.begin(), indices.size() / 2, int64_t{1} << 40); });
  indices = memory.As<int64_t>();
  memory.Arm();
  const std::string refusal = Refusal([&] {  // as above
    EXPECT_EQ(GroupByIndex(indices, 2).sizes, (Ids{static_cast<int64_t>(indices.size()), 0}));
  });
  EXPECT_TRUE(refusal.empty() || refusal.starts_with("indices must be in 0..1, got")) << refusal;
  EXPECT_TRUE(memory.was_touched());
}

TEST(GroupByIndexTest, IsStableAndCountsEmptyGroups) {
  const Grouping grouping = GroupByIndex(Ids{2, 0, 2, 0, 3}, 5);
  EXPECT_EQ(grouping.positions, (Ids{1, 3, 0, 2, 4}));
  EXPECT_EQ(grouping.sizes, (Ids{2, 0, 2, 1, 0}));
  EXPECT_EQ(GroupByIndex(Ids{}, 2).sizes, (Ids{0, 0}));
}

TEST(GroupByIndexTest, RefusesNumbersOutOfRange) {
  EXPECT_EQ(Refusal([] { GroupByIndex(Ids{0, 2}, 2); }), "indices must be in 0..1, got 2");
  EXPECT_EQ(Refusal([] { GroupByIndex(Ids{-1}, 2); }), "indices must be in 0..1, got -1");
  for (const int64_t count : {int64_t{0}, int64_t{-1}, kMax}) {
    EXPECT_NE(Refusal([&] { GroupByIndex(Ids{}, count); }), "");
  }
}

TEST(FloorModTest, NegativeIdsStayInRange) {
  EXPECT_EQ(FloorMod(-1, 3), 2);
  EXPECT_EQ(FloorMod(-3, 3), 0);
  EXPECT_EQ(FloorMod(kMin, 10), 2);  // -9223372036854775808 = -922337203685477581 * 10 + 2
  EXPECT_EQ(FloorMod(kMax, 1), 0);
}

TEST(PartitionTest, ModGroupsByFloorRemainder) {
  const PartitionedIds parts = Partition(Ids{5, -1, 3, 4, -3, 5}, 3, PartitionRule::kMod);
  EXPECT_EQ(parts.ids, (Ids{3, -3, 4, 5, -1, 5}));
  EXPECT_EQ(parts.sizes, (Ids{2, 1, 3}));
  EXPECT_EQ(parts.positions, (Ids{2, 4, 3, 0, 1, 5}));
}

TEST(PartitionTest, BucketsGoToOwnersInWholeRanges) {
  std::mt19937_64 random(301);
  Ids ids = RandomIds(&random, 5000, uint64_t{1} << 62);
  ids.insert(ids.end(), {0, -1, kMin, kMax});
  for (const int64_t owners : {1, 2, 3, 7, 1000, 1024}) {
    const PartitionedIds parts = Partition(ids, owners, PartitionRule::kBucket);
    size_t at = 0;
    for (int64_t owner = 0; owner < owners; ++owner) {
      for (int64_t i = 0; i < parts.sizes[static_cast<size_t>(owner)]; ++i, ++at) {
        ASSERT_EQ(int64_t{BucketOf(parts.ids[at])} * owners / 1024, owner);
        ASSERT_EQ(ids[static_cast<size_t>(parts.positions[at])], parts.ids[at]);
      }
    }
    EXPECT_EQ(at, ids.size());
  }
  EXPECT_EQ(Refusal([&] { Partition(ids, 1025, PartitionRule::kBucket); }),
            "num_partitions must be at most 1024 by the bucket rule, got 1025");
  EXPECT_EQ(Partition(ids, 1025, PartitionRule::kMod).sizes.size(), 1025u);
}

TEST(SplitRaggedTest, PartsKeepRowsAndOrder) {
  // [[10, 11, 12], [], [13, 14]]
  const RaggedSplit split = SplitRagged(Ids{1, 0, 1, 0, 1}, Ids{10, 11, 12, 13, 14}, Ids{0, 3, 3, 5}, 3);
  EXPECT_EQ(split.values, (Ids{11, 13, 10, 12, 14}));
  EXPECT_EQ(split.sizes, (Ids{2, 3, 0}));
  EXPECT_EQ(split.row_splits, (Ids{0, 1, 1, 2, /**/ 0, 2, 2, 3, /**/ 0, 0, 0, 0}));
  EXPECT_EQ(split.positions, (Ids{1, 3, 0, 2, 4}));
}

TEST(SplitRaggedTest, RefusesWhatDoesNotFit) {
  EXPECT_EQ(Refusal([] { SplitRagged(Ids{0}, Ids{1, 2}, Ids{0, 2}, 2); }),
            "Ragged tensor values size must match indices size. Got 2 v.s. 1");
  EXPECT_EQ(Refusal([] { SplitRagged(Ids{0, 0}, Ids{1, 2}, Ids{0, 3}, 2); }),
            "The input ragged tensor is invalid. row_splits must end with the number of values 2, got 3");
  EXPECT_NE(Refusal([] { SplitRagged(Ids{0, 0}, Ids{1, 2}, Ids{0, 2, 1, 2}, 2); }), "");
  EXPECT_NE(Refusal([] { SplitRagged(Ids{}, Ids{}, Ids{}, 2); }), "");
  EXPECT_EQ(SplitRagged(Ids{}, Ids{}, Ids{0}, 2).row_splits, (Ids{0, 0}));
}

TEST(NormalizeMergedSplitTest, ShiftsLaterParts) {
  EXPECT_EQ(NormalizeMergedSplit(Ids{0, 2, 5, 5, 9, 0, 0, 3, 4}, Ids{5, 4}), (Ids{0, 2, 5, 5, 9, 9, 12, 13}));
  EXPECT_EQ(NormalizeMergedSplit(Ids{0, 0, 0}, Ids{1, 1, 1}), Ids{0});
  EXPECT_EQ(NormalizeMergedSplit(Ids{}, Ids{}), Ids{0});
}

TEST(NormalizeMergedSplitTest, RefusesSizesAndSplitsThatDoNotFit) {
  EXPECT_NE(Refusal([] { NormalizeMergedSplit(Ids{0, 1}, Ids{1}); }), "");
  EXPECT_NE(Refusal([] { NormalizeMergedSplit(Ids{0, 1}, Ids{3}); }), "");
  EXPECT_NE(Refusal([] { NormalizeMergedSplit(Ids{0, 1}, Ids{2, 0}); }), "");
  EXPECT_NE(Refusal([] { NormalizeMergedSplit(Ids{0, 1}, Ids{-1, 3}); }), "");
  EXPECT_NE(Refusal([] { NormalizeMergedSplit(Ids{0, 1}, Ids{kMax, kMax}); }), "");
  EXPECT_NE(Refusal([] { NormalizeMergedSplit(Ids{0, 1, 1, 2}, Ids{2, 2}); }), "");
  EXPECT_NE(Refusal([] { NormalizeMergedSplit(Ids{0, kMax, 0, 1}, Ids{2, 2}); }), "");
}

TEST(FindIdsTest, TheFirstOccurrenceWins) {
  EXPECT_EQ(FindIds(Ids{5, kMin, 5, 7}, Ids{7, 5, 5, kMin}), (Ids{3, 0, 0, 1}));
  EXPECT_EQ(FindIds(Ids{}, Ids{}), Ids{});
  EXPECT_EQ(Refusal([] { FindIds(Ids{5}, Ids{5, -6}); }), "Unable to map id -6");
}

}  // namespace
}  // namespace monolith
