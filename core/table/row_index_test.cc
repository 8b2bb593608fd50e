#include "table/row_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "base/hash.h"

namespace monolith {
namespace {

std::set<int> Entries(uint64_t matches, int stride) {
  std::set<int> entries;
  for (; matches != 0; matches &= matches - 1) entries.insert(std::countr_zero(matches) / stride);
  return entries;
}

TEST(MatchTagsTest, BothFormsFindExactlyTheEntriesWithTheTag) {
  std::mt19937 random(301);
  for (int round = 0; round < 20000; ++round) {
    IndexLine line{};
    for (uint8_t& tag : line.tags) tag = static_cast<uint8_t>(random() % (round % 2 == 0 ? 4 : 256));
    line.passed = static_cast<uint16_t>(random());
    const auto tag = static_cast<uint8_t>(random() % (round % 2 == 0 ? 4 : 256));
    std::set<int> expected;
    for (int i = 0; i < kLineEntries; ++i) {
      if (line.tags[i] == tag) expected.insert(i);
    }
    ASSERT_EQ(Entries(MatchTags(line, tag), kMatchStride), expected);
    ASSERT_EQ(Entries(MatchTagsPortable(line, tag), 1), expected);
  }
}

class RowIndexTest : public ::testing::Test {
 protected:
  RowIndexTest() { index_.Use(&memory_, kBucket); }

  void Insert(uint64_t hash, uint32_t row) {
    if (index_.ShouldGrow()) {
      index_.Grow(index_.size() + 1, 0.5, [&](auto&& add) {
        for (const auto& [number, its_hash] : rows_) add(its_hash, number);
      });
    }
    index_.Insert(hash, row);
    rows_[row] = hash;
  }
  void Erase(uint32_t row) {
    index_.Erase(rows_[row], row);
    rows_.erase(row);
  }
  uint32_t Find(uint64_t hash, uint32_t row) const {
    return RowIndex::Find(index_.shape(), hash, [row](uint32_t candidate) { return candidate == row; });
  }

  static constexpr uint32_t kBucket = 77;
  BlockArena blocks_;
  IndexMemory memory_{blocks_};
  RowIndex index_;
  std::map<uint32_t, uint64_t> rows_;
};

TEST_F(RowIndexTest, FindsEveryEntryThroughGrowthAndErasure) {
  std::mt19937_64 random(301);
  uint32_t next = 0;
  for (int round = 0; round < 60000; ++round) {
    if (rows_.empty() || random() % 3 != 0) {
      Insert(random(), next++);
    } else {
      const uint32_t row = rows_.lower_bound(random() % next) == rows_.end()
                               ? rows_.begin()->first
                               : rows_.lower_bound(random() % next)->first;
      Erase(row);
    }
  }
  EXPECT_EQ(index_.size(), rows_.size());
  for (const auto& [row, hash] : rows_) ASSERT_EQ(Find(hash, row), row);
  EXPECT_EQ(Find(random(), kNoRow), kNoRow);
}

TEST_F(RowIndexTest, ANeighbourFollowsWhenOneGrowsAndTakesNoMemory) {
  for (uint32_t row = 0; row < 1000; ++row) Insert(Mix64(row), row);
  const auto add_nothing = [](auto&&) {};
  RowIndex neighbour, empty_one, stranger;
  neighbour.Use(&memory_, kBucket + 1), empty_one.Use(&memory_, kBucket + 2),
      stranger.Use(&memory_, kBucket + kPlateBuckets);
  for (RowIndex* index : {&neighbour, &empty_one, &stranger}) index->Grow(512, 0.5, add_nothing);
  for (RowIndex* index : {&neighbour, &stranger}) {
    for (uint32_t row = 0; row < 512; ++row) index->Insert(Mix64(row), row);
  }
  const uint32_t lines = neighbour.shape().num_lines, more_lines = index_.shape().num_lines;
  ASSERT_LT(lines, more_lines);
  EXPECT_TRUE(neighbour.ShouldGrow());
  EXPECT_FALSE(empty_one.ShouldGrow());
  EXPECT_FALSE(stranger.ShouldGrow());
  const size_t bytes = memory_.MemoryBytes();
  neighbour.Grow(513, 0.5, [](auto&& add) {
    for (uint32_t row = 0; row < 512; ++row) add(Mix64(row), row);
  });
  EXPECT_EQ(neighbour.shape().num_lines, more_lines);
  EXPECT_FALSE(neighbour.ShouldGrow());
  EXPECT_EQ(memory_.MemoryBytes(), bytes);
}

// Every entry outside of its home line costs each of its searches the lines between: these are counted.
TEST_F(RowIndexTest, HoweverHashesAreChosenEntriesAreNearTheirHomes) {
  constexpr uint32_t kEntries = 20000;
  constexpr uint64_t kOneBucket = uint64_t{kBucket} << (64 - kBucketBits);
  for (const int shift :
       {0, 5, 12, 20, 28, 33, 38}) {  // equal except for the lowest bits, some in the middle, the highest
    const auto hash_of = [&](uint64_t k) { return kOneBucket | (shift == 0 ? 0x48d159e268000 : 0) | k << shift; };
    BlockArena blocks;
    IndexMemory memory(blocks);
    RowIndex index;
    index.Use(&memory, kBucket);
    index.Grow(kEntries, 0.5, [](auto&&) {});
    for (uint32_t row = 0; row < kEntries; ++row) index.Insert(hash_of(row), row);
    uint64_t passed = 0;
    for (uint32_t line = 0; line < index.shape().num_lines; ++line) passed += index.shape().Line(line)->passed;
    EXPECT_LT(passed, kEntries / 2) << "shift " << shift;
  }
}

TEST_F(RowIndexTest, EntriesOfOneHashOverflowIntoLaterLinesAndComeBack) {
  constexpr uint32_t kEntries = 100;  // far more than a line holds
  for (uint32_t row = 0; row < 2000; ++row) Insert(Mix64(row), row);
  for (uint32_t row = 2000; row < 2000 + kEntries; ++row) Insert(42, row);
  for (uint32_t row = 2000; row < 2000 + kEntries; ++row) ASSERT_EQ(Find(42, row), row);
  for (uint32_t row = 2000; row < 2000 + kEntries; ++row) Erase(row);
  for (uint32_t row = 2000; row < 2000 + kEntries; ++row) ASSERT_EQ(Find(42, row), kNoRow);
  for (uint32_t row = 0; row < 2000; ++row) ASSERT_EQ(Find(Mix64(row), row), row);
}

}  // namespace
}  // namespace monolith
