// Which row blocks a group takes, counts and refuses.
#include "table/loader.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
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

std::vector<std::string_view> ViewsOf(const std::vector<std::string>& blocks) { return {blocks.begin(), blocks.end()}; }

// Rows in both tables, rows that were removed, and counts of ids that were not let in.
std::unique_ptr<Group> MakeFullGroup() {
  std::unique_ptr<Group> group = MakeTestGroup({.sgd_min_count = 2});
  group->FollowHistory(true);  // or removals would not be kept
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

}  // namespace
}  // namespace monolith
