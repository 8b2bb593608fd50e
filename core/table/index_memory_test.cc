#include "table/index_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "base/hash.h"

namespace monolith {
namespace {

// Lines of an index, each with its bucket and its number.
std::vector<IndexLine> LinesOf(uint32_t bucket, uint32_t num_lines) {
  std::vector<IndexLine> lines(num_lines);
  for (uint32_t line = 0; line < num_lines; ++line) {
    lines[line].rows[0] = bucket;
    lines[line].rows[1] = line;
  }
  return lines;
}

uint64_t HashIn(uint32_t bucket, uint64_t random) {
  return uint64_t{bucket} << (64 - kBucketBits) | random >> kBucketBits;
}

class IndexMemoryTest : public ::testing::Test {
 protected:
  void Give(uint32_t bucket, uint32_t num_lines) {
    memory_.Replace(bucket, LinesOf(bucket, num_lines).data(), num_lines);
    given_[bucket] = num_lines;
  }
  void ExpectAllAreWhatWasGiven() const {
    for (const auto& [bucket, num_lines] : given_) {
      const IndexShape shape = memory_.ShapeOf(bucket);
      ASSERT_EQ(shape.num_lines, num_lines);
      ASSERT_EQ(memory_.view().NumLines(bucket), num_lines);
      for (uint32_t line = 0; line < num_lines; ++line) {
        ASSERT_EQ(shape.Line(line)->rows[0], bucket);
        ASSERT_EQ(shape.Line(line)->rows[1], line);
      }
    }
  }

  BlockArena blocks_;
  IndexMemory memory_{blocks_};
  std::map<uint32_t, uint32_t> given_;
};

// A line that was found stays valid as long as the index does not grow (RowFinder).
TEST_F(IndexMemoryTest, LinesStayWhereTheyAreWhileTheirNumberDoes) {
  for (const uint32_t num_lines : {1u, 8u, kPlateLines, 3 * kPlateLines}) {
    Give(5, num_lines);
    const IndexLine* last = memory_.ShapeOf(5).Line(num_lines - 1);
    Give(6, num_lines);
    Give(5, num_lines);
    EXPECT_EQ(memory_.ShapeOf(5).Line(num_lines - 1), last) << num_lines;
    ExpectAllAreWhatWasGiven();
  }
}

TEST_F(IndexMemoryTest, EveryIndexKeepsItsLinesWhileAllOfThemGrow) {
  std::mt19937_64 random(1);
  for (const uint32_t bucket : {0u, 1u, kPlateBuckets - 1, kPlateBuckets, 500u, 1022u, 1023u}) Give(bucket, 1);
  for (int round = 0; round < 200; ++round) {
    auto each = std::next(given_.begin(), static_cast<int64_t>(random() % given_.size()));
    const uint32_t now = each->second;
    Give(each->first, now < kPlateLines ? 2 * now : now + kPlateLines * (1 + static_cast<uint32_t>(random() % 3)));
    ExpectAllAreWhatWasGiven();
  }
}

TEST_F(IndexMemoryTest, AHomeLineIsTheSameByShapeAndByView) {
  std::mt19937_64 random(2);
  Give(3, 16), Give(4, 32), Give(5, 64), Give(6, 32 * 33);
  for (int round = 0; round < 10000; ++round) {
    const uint64_t hash = HashIn(static_cast<uint32_t>(4 + random() % 3), random());
    const IndexShape shape = memory_.ShapeOf(BucketOfHash(hash));
    ASSERT_LT(shape.HomeOf(hash), shape.num_lines);
    ASSERT_EQ(memory_.view().HomeOnPlate(hash), shape.Line(shape.HomeOf(hash)));
  }
  for (const uint32_t bucket : {3u, 900u}) {  // a small index, and none: an empty line
    const IndexLine* line = memory_.view().HomeOnPlate(HashIn(bucket, random()));
    EXPECT_EQ(line->passed, 0);
    for (const uint8_t tag : line->tags) EXPECT_EQ(tag, 0);
  }
}

TEST_F(IndexMemoryTest, HomeLinesCoverAnIndexEvenly) {
  constexpr uint32_t kLines = 32 * 3;
  Give(9, kLines);
  std::mt19937_64 random(3);
  std::map<uint32_t, int> hits;
  for (int round = 0; round < 96000; ++round) ++hits[memory_.view().HomeOnPlate(HashIn(9, random()))->rows[1]];
  EXPECT_EQ(hits.size(), kLines);
  for (const auto& [line, count] : hits) EXPECT_NEAR(count, 1000, 200) << "line " << line;
}

TEST_F(IndexMemoryTest, TheNextLineIsElsewhereAtTheEndOfAPlate) {
  Give(17, 96);
  const IndexShape shape = memory_.ShapeOf(17);
  for (uint32_t line = 0; line < 96; ++line) {
    EXPECT_EQ(IndexMemory::IsLastOfPlate(shape.Line(line)), line % kPlateLines == kPlateLines - 1);
    if (line % kPlateLines == kPlateLines - 1) continue;
    EXPECT_EQ(shape.Line(line) + 1, shape.Line(line + 1));
  }
}

TEST_F(IndexMemoryTest, NeighboursShareTheMemoryOfAPlate) {
  const size_t empty = memory_.MemoryBytes();
  Give(64, 32);
  const size_t one = memory_.MemoryBytes();
  for (uint32_t bucket = 65; bucket < 64 + kPlateBuckets; ++bucket) Give(bucket, 32);
  EXPECT_EQ(memory_.MemoryBytes(), one);
  EXPECT_GE(one - empty, kPlateBuckets * 32 * sizeof(IndexLine));
  EXPECT_EQ(memory_.LinesOnPlates(65), 32u);
  Give(0, 32);
  EXPECT_GT(memory_.MemoryBytes(), one);
  EXPECT_EQ(memory_.LinesOnPlates(64 + kPlateBuckets), 0u);
}

TEST_F(IndexMemoryTest, ASmallIndexGivesItsBlockBackWhenItGrows) {
  Give(1, 4);
  const size_t four = blocks_.used_bytes();
  EXPECT_EQ(four, 4 * sizeof(IndexLine));
  Give(1, 8);
  EXPECT_EQ(blocks_.used_bytes(), 2 * four);
  Give(1, 32);
  EXPECT_EQ(blocks_.used_bytes(), 0u);
  ExpectAllAreWhatWasGiven();
}

TEST_F(IndexMemoryTest, AfterClearingItIsEmptyAndCanBeUsedAgain) {
  const size_t empty = memory_.MemoryBytes();
  for (int round = 0; round < 3; ++round) {
    Give(1, 16), Give(2, 64), Give(800, 320);
    memory_.SetSize(2, 5);
    ExpectAllAreWhatWasGiven();
    memory_.Clear();
    given_.clear();
    EXPECT_EQ(memory_.ShapeOf(1).num_lines, 0u);
    EXPECT_EQ(memory_.ShapeOf(800).num_lines, 0u);
    EXPECT_EQ(memory_.SizeOf(2), 0u);
    EXPECT_EQ(memory_.MemoryBytes(), empty);
    EXPECT_EQ(blocks_.used_bytes(), 0u);
  }
}

TEST_F(IndexMemoryTest, TwoThousandPlatesDoNotOverlap) {
  Give(5, kPlateLines * 2000);
  std::set<const IndexLine*> pieces;
  const IndexShape shape = memory_.ShapeOf(5);
  for (uint32_t level = 0; level < 2000; ++level) pieces.insert(shape.Piece(level));
  EXPECT_EQ(pieces.size(), 2000u);
  ExpectAllAreWhatWasGiven();
}

}  // namespace
}  // namespace monolith
