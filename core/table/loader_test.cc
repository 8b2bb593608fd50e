// Which row blocks a group accepts, counts and rejects.
#include "table/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "table/cut.h"
#include "table/group_for_test.h"

namespace monolith {
namespace {

std::vector<std::string> BlocksOf(Group* group, bool state = true) {
  const std::unique_ptr<Cut> cut = group->OpenCut();
  const std::unique_ptr<BlockSource> source = cut->Blocks(0, kNumBuckets, {.state = state});
  std::vector<std::string> blocks;
  for (std::string block; source->Next(&block);) blocks.push_back(block);
  return blocks;
}

std::vector<RowBlockView> ViewsOf(const std::vector<std::string>& blocks) {
  const std::vector<std::string_view> bytes(blocks.begin(), blocks.end());
  return RowBlockView::AllOf(bytes);
}

// Rows in both tables, rows that were removed, and counts of ids that were not admitted.
std::unique_ptr<Group> MakeFullGroup() {
  std::unique_ptr<Group> group = MakeTestGroup({.sgd_min_count = 2});
  group->FollowHistory(true);  // otherwise removals would not be kept
  const std::vector<int64_t> ids = SpreadIds(600);
  ApplyStep(group.get(), ids, 1.0f, kStartTime, false);
  ApplyStep(group.get(), {ids.begin() + 450, ids.end()}, 1.0f, kStartTime, false);
  group->Erase(0, std::vector<int64_t>{INT64_MIN, INT64_MAX});
  return group;
}

TEST(LoaderTest, TellsWhatItLoadedAndWhatItLeftAlone) {
  const std::unique_ptr<Group> source = MakeFullGroup();
  const std::vector<std::string> blocks = BlocksOf(source.get());
  Loaded expected;
  for (const std::string& bytes : blocks) {
    const RowBlockView block(bytes);
    if (block.header().bucket < 100 || block.header().bucket >= 700) {
      expected.ignored += block.header().kind == BlockKind::kFilter ? 1 : block.count();
    } else if (block.header().kind == BlockKind::kFilter) {
      ++expected.filters;
    } else {
      (block.header().kind == BlockKind::kTombstone ? expected.tombstones : expected.rows) += block.count();
    }
  }
  const std::unique_ptr<Group> target = MakeTestGroup({.sgd_min_count = 2});
  EXPECT_NO_THROW(target->CheckBlocks(ViewsOf(blocks), 100, 700, {}));
  EXPECT_EQ(RowsOf(*target).rows.size(), 0u);
  const Loaded loaded = target->Load(ViewsOf(blocks), 100, 700, {});
  EXPECT_EQ(loaded.rows, expected.rows);
  EXPECT_EQ(loaded.tombstones, expected.tombstones);
  EXPECT_EQ(loaded.filters, expected.filters);
  EXPECT_EQ(loaded.ignored, expected.ignored);
  for (const int64_t some : {expected.rows, expected.filters, expected.ignored}) EXPECT_GT(some, 0);
  EXPECT_EQ(target->Load(ViewsOf(blocks), 0, kNumBuckets, {}).tombstones, 2);
  EXPECT_EQ(RowsOf(*target), RowsOf(*source));
}

TEST(LoaderTest, LeavesBucketsOutsideAsTheyWere) {
  const std::unique_ptr<Group> source = MakeFullGroup(), target = MakeTestGroup();
  target->Load(ViewsOf(BlocksOf(source.get())), 100, 700, {});
  for (const int64_t id : target->Ids(0)) EXPECT_TRUE(BucketOf(id) >= 100 && BucketOf(id) < 700);
}

TEST(LoaderTest, DamagedBytesAreRefusedWhereverTheirBucketLies) {
  const std::unique_ptr<Group> source = MakeFullGroup(), target = MakeTestGroup();
  std::vector<std::string> blocks = BlocksOf(source.get());
  blocks.back()[blocks.back().size() - 20] ^= 4;  // of one of the last buckets
  EXPECT_THROW(target->Load(ViewsOf(blocks), 0, 1, {}), Error);
  EXPECT_THROW(target->CheckBlocks(ViewsOf(blocks), 0, 1, {}), Error);
}

TEST(LoaderTest, BlocksOfAnotherTableAreRefusedByName) {
  const std::unique_ptr<Group> target = MakeTestGroup();
  const uint32_t bucket = BucketOf(1);
  for (const uint32_t table : {1u, 7u}) {
    RowBlockBuilder builder({.digest = 0xabc, .table = table, .bucket = bucket, .payload_bytes_per_row = 12}, 1);
    builder.Add(1, 5);
    const std::vector<std::string> blocks = {builder.Finish()};
    const std::string number = std::to_string(table);
    try {
      target->Load(ViewsOf(blocks), 0, kNumBuckets, {});
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kFailedPrecondition);
      EXPECT_EQ(error.what(), "RowBlock(FULL, table=" + number + ", bucket=" + std::to_string(bucket) +
                                  ", count=1) has schema digest 0x0000000000000abc, which is not that of this store's "
                                  "table " +
                                  number + "; compare the two stores' schema.text");
    }
  }
}

TEST(LoaderTest, TakesRowsOfItsServingTwin) {
  const std::unique_ptr<Group> source = MakeFullGroup(), target = MakeTestGroup({.sgd_min_count = 2});
  EXPECT_EQ(target->Load(ViewsOf(BlocksOf(source.get(), false)), 0, kNumBuckets, {}).rows,
            source->Stats(0).rows + source->Stats(1).rows);
}

// A block of table 1 with these rows; weights of a row are equal.
std::string SgdBlock(const Group& group, uint32_t bucket, const std::vector<std::pair<int64_t, float>>& rows) {
  RowBlockBuilder builder(
      {.digest = group.table(1).digest, .table = 1, .bucket = bucket, .payload_bytes_per_row = sizeof(float) * kSgdDim},
      static_cast<uint32_t>(rows.size()));
  for (const auto& [key, value] : rows) {
    const std::vector<float> weights(kSgdDim, value);
    std::memcpy(builder.Add(key, 5), weights.data(), sizeof(float) * kSgdDim);
  }
  return builder.Finish();
}

std::string SgdTombstones(const Group& group, uint32_t bucket, const std::vector<int64_t>& keys) {
  RowBlockBuilder builder(
      {.kind = BlockKind::kTombstone, .digest = group.table(1).digest, .table = 1, .bucket = bucket},
      static_cast<uint32_t>(keys.size()));
  for (const int64_t key : keys) builder.Add(key, 1);
  return builder.Finish();
}

// Rows are looked up before they are written: changes by an earlier block, or an earlier row of the same block, must be
// seen.
TEST(LoaderTest, BlocksOfABucketCountInTheirOrder) {
  const std::unique_ptr<Group> target = MakeTestGroup();
  const std::vector<int64_t> ids = IdsInBuckets(300, 5, 6);
  std::vector<std::pair<int64_t, float>> first, second, twice;
  for (const int64_t id : ids) first.emplace_back(id, 1.0f), second.emplace_back(id, 2.0f);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 50; ++i) twice.emplace_back(ids[static_cast<size_t>(i)], 3.0f + static_cast<float>(round));
  }
  const std::vector<int64_t> gone(ids.begin() + 40, ids.begin() + 120), back(ids.begin() + 100, ids.begin() + 120);
  std::vector<std::string> blocks = {
      SgdBlock(*target, 5, first),
      SgdBlock(*target, 5, second),
      SgdBlock(*target, 5, twice),
      SgdTombstones(*target, 5, gone),
      SgdBlock(*target, 5, {{back[0], 9.0f}, {back[1], 8.0f}}),
      SgdTombstones(*target, 5, {back[1]}),
  };
  std::string packed;
  for (const std::string& block : blocks) packed += block;
  for (int round = 0; round < 2; ++round) {  // into an empty table, and over its own rows
    EXPECT_EQ(target->Load(RowBlockView::AllIn(packed), 0, kNumBuckets, {}).rows, 300 + 300 + 150 + 2);
    const std::vector<float> found = LookupWhole(*target, 1, ids);
    for (size_t i = 0; i < ids.size(); ++i) {
      const float expected = i == 100 ? 9.0f : i >= 40 && i < 120 ? 0.0f : i < 50 ? 5.0f : 2.0f;
      ASSERT_EQ(found[i], expected) << "row " << i;
    }
    EXPECT_EQ(target->Stats(1).rows, 300u - 80u + 1u);
  }
}

TEST(LoaderTest, PackedBlocksAreWorthWhatTheyAreOneByOneInAnyOrderOfBuckets) {
  const std::unique_ptr<Group> source = MakeFullGroup(), expected = MakeTestGroup({.sgd_min_count = 2});
  std::vector<std::string> blocks = BlocksOf(source.get());
  expected->Load(ViewsOf(blocks), 0, kNumBuckets, {});
  EXPECT_EQ(RowsOf(*expected), RowsOf(*source));
  const std::vector<std::string> whole = BlocksOf(expected.get());
  std::stable_sort(blocks.begin(), blocks.end(), [](const std::string& a, const std::string& b) {
    return RowBlockView(a).header().bucket % 7 < RowBlockView(b).header().bucket % 7;
  });
  std::string packed = "unaligned";
  for (const std::string& block : blocks) packed += block;
  const std::string_view bytes = std::string_view(packed).substr(9);
  const int threads = NumThreads();
  for (const int count : {1, 3}) {
    SetNumThreads(count);
    const std::unique_ptr<Group> target = MakeTestGroup({.sgd_min_count = 2});
    target->CheckBlocks(RowBlockView::AllIn(bytes), 0, kNumBuckets, {});
    EXPECT_EQ(RowsOf(*target).rows.size(), 0u);
    const Loaded loaded = target->Load(RowBlockView::AllIn(bytes), 0, kNumBuckets, {});
    EXPECT_GT(loaded.filters, 0);
    EXPECT_TRUE(BlocksOf(target.get()) == whole);  // too many bytes to print
  }
  SetNumThreads(threads);
}

}  // namespace
}  // namespace monolith
