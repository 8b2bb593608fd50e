#include "table/shard_reorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "table/first_touch_for_test.h"

namespace monolith {
namespace {

using Ids = std::vector<int64_t>;
using Floats = std::vector<float>;

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

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

TEST(ReorderByShardTest, GroupsDistinctIdsTheLatestFirst) {
  const ShardedIds sharded = ReorderByShard(Ids{0, 1, 2, 2, 3, 5}, Ids{0, 1, 2, 2, 0, 2}, 3);
  EXPECT_EQ(sharded.ids, (Ids{3, 0, 1, 5, 2}));
  EXPECT_EQ(sharded.sizes, (Ids{2, 1, 2}));
  EXPECT_EQ(ReorderByShard(Ids{}, Ids{}, 2).sizes, (Ids{0, 0}));
}

TEST(ReorderByShardTest, TheFirstOccurrenceDecidesTheShard) {
  const ShardedIds sharded = ReorderByShard(Ids{9, 9}, Ids{1, 0}, 2);
  EXPECT_EQ(sharded.ids, Ids{9});
  EXPECT_EQ(sharded.sizes, (Ids{0, 1}));
}

TEST(ReorderByShardTest, RefusesWrongShards) {
  EXPECT_NE(Refusal([] { ReorderByShard(Ids{1}, Ids{0, 0}, 2); }), "");
  EXPECT_NE(Refusal([] { ReorderByShard(Ids{1}, Ids{2}, 2); }), "");
  EXPECT_NE(Refusal([] { ReorderByShard(Ids{1, 1}, Ids{0, 7}, 2); }), "");  // even at a second occurrence
  EXPECT_NE(Refusal([] { ReorderByShard(Ids{1}, Ids{0}, 0); }), "");
}

TEST(ReorderFusedTest, LaysRowsOutShardAfterShard) {
  const FusedReorder fused = ReorderFused(Ids{0, 1, 0, 3, 2, 3, 5, 6, 7}, Ids{3, 3, 3}, 2, Ids{1, 2, 3}, true);
  EXPECT_EQ(fused.ids, (Ids{0, 2, 6, 1, 3, 5, 7}));
  EXPECT_EQ(fused.shard_sizes, (Ids{3, 4}));
  EXPECT_EQ(fused.pair_sizes, (Ids{1, 1, 1, 1, 1, 2}));
  EXPECT_EQ(fused.offsets, (Ids{0, 6, 0, 7, 1, 7, 9, 3, 12}));
}

TEST(ReorderFusedTest, NothingIsDistinctAcrossInputs) {
  const FusedReorder fused = ReorderFused(Ids{4, 4, 4}, Ids{2, 0, 1}, 1, Ids{1, 5, 2}, true);
  EXPECT_EQ(fused.ids, (Ids{4, 4}));
  EXPECT_EQ(fused.pair_sizes, (Ids{1, 0, 1}));
  EXPECT_EQ(fused.offsets, (Ids{0, 0, 1}));
}

TEST(ReorderFusedTest, TheFirstShardCanBeSparedAboveFourShards) {
  const Ids ids = {0, 1, 2, 3, 4, -1, kMin};
  EXPECT_EQ(ReorderFused(ids, Ids{7}, 5, Ids{1}, true).shard_sizes, (Ids{0, 3, 1, 1, 2}));
  EXPECT_EQ(ReorderFused(ids, Ids{7}, 5, Ids{1}, false).shard_sizes, (Ids{1, 1, 2, 1, 2}));
  EXPECT_EQ(ReorderFused(ids, Ids{7}, 4, Ids{1}, true).shard_sizes, (Ids{3, 1, 1, 2}));
}

TEST(ReorderFusedTest, EveryOffsetPointsToTheRowOfItsId) {
  std::mt19937_64 random(301);
  for (const int64_t shards : {1, 3, 6}) {
    const Ids dims = {3, 1, 8, 2};
    const Ids lengths = {50, 0, 200, 7};
    Ids ids;
    for (int i = 0; i < 257; ++i) ids.push_back(static_cast<int64_t>(random() % 90) - 45);
    const FusedReorder fused = ReorderFused(ids, lengths, shards, dims, true);
    // A buffer in which every row holds its id, laid out by the sizes alone.
    Ids buffer;
    size_t next = 0;
    for (size_t pair = 0; pair < fused.pair_sizes.size(); ++pair) {
      for (int64_t k = 0; k < fused.pair_sizes[pair]; ++k, ++next) {
        buffer.insert(buffer.end(), static_cast<size_t>(dims[pair % dims.size()]), fused.ids[next]);
      }
    }
    EXPECT_EQ(next, fused.ids.size());
    size_t at = 0;
    for (size_t input = 0; input < dims.size(); ++input) {
      for (int64_t k = 0; k < lengths[input]; ++k, ++at) {
        for (int64_t d = 0; d < dims[input]; ++d) {
          ASSERT_EQ(buffer.at(static_cast<size_t>(fused.offsets[at] + d)), ids[at]);
        }
      }
    }
  }
}

TEST(ReorderFusedTest, RefusesInputsThatDoNotFit) {
  EXPECT_NE(Refusal([] { ReorderFused(Ids{1, 2}, Ids{1}, 2, Ids{1}, true); }), "");
  EXPECT_NE(Refusal([] { ReorderFused(Ids{1, 2}, Ids{3, -1}, 2, Ids{1, 1}, true); }), "");
  EXPECT_NE(Refusal([] { ReorderFused(Ids{1, 2}, Ids{2}, 2, Ids{1, 1}, true); }), "");
  EXPECT_NE(Refusal([] { ReorderFused(Ids{1, 2}, Ids{2}, 2, Ids{0}, true); }), "");
  EXPECT_NE(Refusal([] { ReorderFused(Ids{1, 2}, Ids{2}, 0, Ids{1}, true); }), "");
  EXPECT_EQ(ReorderFused(Ids{}, Ids{}, 2, Ids{}, true).shard_sizes, (Ids{0, 0}));
}

TEST(UniqueWithOffsetsTest, EveryOccurrenceGetsItsOffset) {
  // Rows [7, 8, 7] of 2 floats each and [7] of 3 floats.
  const UniqueKeys unique = UniqueWithOffsets(Ids{7, 8, 7, 7}, Ids{0, 3, 4}, Ids{2, 3});
  EXPECT_EQ(unique.keys, (Ids{7, 8, 7}));
  EXPECT_EQ(unique.row_splits, (Ids{0, 2, 3}));
  EXPECT_EQ(unique.offsets, (Ids{0, 4, 2, 6}));
  EXPECT_EQ(unique.offset_splits, (Ids{0, 2, 3, 4}));
  EXPECT_EQ(unique.num_floats, 9);
  EXPECT_EQ(Refusal([] { UniqueWithOffsets(Ids{7}, Ids{0, 1}, Ids{2, 3}); }), "RaggedKey should have 2 but got 1");
}

TEST(FillByOffsetsTest, OffsetsThatChangeMeanwhileAreFollowedAsTheyWereRead) {
  std::span<int64_t> offsets;
  FirstTouch memory(1, [&] { std::fill_n(offsets.begin(), offsets.size() / 2, int64_t{1} << 40); });
  offsets = memory.As<int64_t>();
  memory.Arm();
  Floats buffer(1);
  // A copy that starts at the end has read the changed values, which are rejected.
  const std::string refusal = Refusal([&] {
    FillByOffsets(Ids{0}, Ids{0, 1}, Floats{7}, offsets, Ids{0, static_cast<int64_t>(offsets.size())}, Ids{1}, buffer);
    EXPECT_EQ(buffer, Floats{7});
  });
  EXPECT_TRUE(refusal.empty() || refusal.starts_with("an offset must leave room for")) << refusal;
  EXPECT_TRUE(memory.was_touched());
}

TEST(FillByOffsetsTest, ValuesReachAllOccurrencesOfTheirKey) {
  const UniqueKeys unique = UniqueWithOffsets(Ids{7, 8, 7, 7}, Ids{0, 3, 4}, Ids{2, 3});
  Floats buffer(9, 0.0f);
  // Key 7 of row 0, then key 7 of row 1; key 8 is filled by another call, as another shard would.
  FillByOffsets(Ids{0, 2}, Ids{0, 1, 2}, Floats{1, 2, 3, 4, 5}, unique.offsets, unique.offset_splits, Ids{2, 3},
                buffer);
  EXPECT_EQ(buffer, (Floats{1, 2, 0, 0, 1, 2, 3, 4, 5}));
  FillByOffsets(Ids{1}, Ids{0, 1, 1}, Floats{8, 9}, unique.offsets, unique.offset_splits, Ids{2, 3}, buffer);
  EXPECT_EQ(buffer, (Floats{1, 2, 8, 9, 1, 2, 3, 4, 5}));
}

TEST(FillByOffsetsTest, WrongInputIsRefusedBeforeAnythingIsWritten) {
  const Ids offsets = {0, 4, 2};
  const Ids splits = {0, 2, 3};
  const Floats before(6, -1.0f);
  Floats buffer = before;
  const auto fill = [&](const Ids& positions, const Ids& position_splits, const Floats& values, const Ids& dims) {
    return Refusal([&] { FillByOffsets(positions, position_splits, values, offsets, splits, dims, buffer); });
  };
  EXPECT_EQ(fill({0, 2}, {0, 2}, {1, 2, 3, 4}, {2}), "pos is bigger than offset size. 2 v.s. 2");
  EXPECT_EQ(fill({0, -1}, {0, 2}, {1, 2, 3, 4}, {2}), "pos is bigger than offset size. -1 v.s. 2");
  EXPECT_EQ(fill({0, 1}, {0, 2}, {1, 2, 3}, {2}), "Value size doesn't match expected size. Expected 4 floats, got 3");
  EXPECT_EQ(fill({0, 1}, {0, 2}, {1, 2, 3, 4, 5}, {2}),
            "Value size doesn't match expected size. Expected 4 floats, got 5");
  EXPECT_NE(fill({0, 1}, {0, 2}, {1, 2, 3, 4, 5, 6}, {3}), "");  // offset 4 leaves room for 2
  EXPECT_NE(fill({0}, {0, 1}, {1, 2}, {2, 2}), "");
  EXPECT_EQ(buffer, before);
  EXPECT_EQ(fill({1}, {0, 1}, {1, 2}, {2}), "");
}

}  // namespace
}  // namespace monolith
