// The list of changed rows of a shard.
#include "table/table_shard.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "base/hash.h"

namespace monolith {
namespace {

constexpr uint32_t kBucket = 5;
constexpr uint32_t kRows = 4096;
constexpr uint32_t kLimit = kRows / 8;  // of the list
constexpr uint32_t kLine = 13;          // the list grows by this number of rows at a time

class ChangeLogTest : public ::testing::Test {
 protected:
  ChangeLogTest() {
    shard_.index.Use(&memory_, kBucket);
    for (int64_t key = 0; key < kRows; ++key) {
      numbers_.push_back(shard_.Insert(records_, kBucket, HashInBucket(kBucket, key), key, clock_));
    }
    clock_.logs_changes = true;
    shard_.RestartLog(clock_.epoch);
    ++clock_.epoch;
  }

  // Changes the rows numbered [begin, end), each counted from 0, in a new epoch.
  void ChangeInNewEpoch(uint32_t begin, uint32_t end) {
    ++clock_.epoch;
    for (uint32_t i = begin; i < end; ++i) shard_.BeforeChange(records_, numbers_[i % kRows], clock_);
  }

  // Number of rows listed from an epoch on; -1 when all rows must be scanned.
  int Listed(uint32_t first) const {
    std::vector<uint32_t> rows;
    return shard_.ChangedFrom(first, &rows) ? static_cast<int>(rows.size()) : -1;
  }

  BlockArena blocks_;
  IndexMemory memory_{blocks_};
  RecordPool records_{sizeof(RowHeader) + 4 * sizeof(float)};
  TableShard shard_;
  std::vector<uint32_t> numbers_;
  HistoryClock clock_;
};

TEST_F(ChangeLogTest, AnOverflowDropsTheOldestEpochsOnly) {
  for (uint32_t i = 0; i < 6; ++i) ChangeInNewEpoch(100 * i, 100 * (i + 1));
  const uint32_t last = clock_.epoch;
  EXPECT_EQ(Listed(last), 100);
  EXPECT_EQ(Listed(last - 2), 300);
  EXPECT_EQ(Listed(last - 5), -1) << "600 rows are more than the list takes";
}

TEST_F(ChangeLogTest, AReaderThatKeepsUpNeverHasToSeeAllRows) {
  for (uint32_t round = 0; round < 2000; ++round) {
    const uint32_t rows = 1 + round * 37 % (kLimit * 3 / 8);
    ChangeInNewEpoch(round * 11, round * 11 + rows);
    ASSERT_EQ(Listed(clock_.epoch), static_cast<int>(rows));
    ASSERT_GE(Listed(clock_.epoch - 1), static_cast<int>(rows)) << "one epoch behind, in round " << round;
  }
}

TEST_F(ChangeLogTest, ManySmallEpochsKeepTheListWithinItsBound) {
  const size_t before = shard_.MemoryBytes();
  for (uint32_t i = 0; i < 300'000; ++i) ChangeInNewEpoch(i, i + 1);
  EXPECT_EQ(Listed(clock_.epoch - kLimit / 2 + 1), static_cast<int>(kLimit / 2));
  EXPECT_LE(shard_.MemoryBytes() - before, 2 * kLimit * 3 * sizeof(uint32_t)) << "a row and its epoch, room to grow";
}

TEST_F(ChangeLogTest, AnEpochThatFillsTheListAloneIsSeenAsAWhole) {
  ChangeInNewEpoch(0, 10);
  ChangeInNewEpoch(0, kLimit + 2 * kLine);
  const uint32_t full = clock_.epoch;
  EXPECT_EQ(Listed(full), -1);
  ChangeInNewEpoch(7, 9);
  EXPECT_EQ(Listed(full), -1);
  EXPECT_EQ(Listed(full + 1), 2) << "the list begins again after that epoch";
}

TEST_F(ChangeLogTest, AListLongerThanAllowedAfterRowsWentIsCutBack) {
  ChangeInNewEpoch(0, kLimit - 10);
  for (uint32_t i = kLimit; i < kRows; ++i) shard_.Erase(records_, numbers_[i], clock_);
  ChangeInNewEpoch(0, 20);
  EXPECT_EQ(Listed(clock_.epoch), 20);
}

TEST_F(ChangeLogTest, RenumberedEpochsListTheSameRows) {
  for (uint32_t i = 0; i < 5; ++i) ChangeInNewEpoch(10 * i, 10 * (i + 1));
  const uint32_t last = clock_.epoch;
  ASSERT_EQ(Listed(last - 1), 20);
  const EpochShift shift{last - 3};
  shard_.ShiftEpochs(records_, shift);
  EXPECT_EQ(Listed(2), 20);
  EXPECT_EQ(Listed(1), 30);
  EXPECT_EQ(EpochOf(*HeaderOf(records_.AtAllocated(numbers_[49]))), 3u);
  EXPECT_EQ(EpochOf(*HeaderOf(records_.AtAllocated(numbers_[0]))), 0u);
}

TEST(EpochShiftTest, WhatComesAfterAnOpenCutStaysApartFromWhatIsInIt) {
  const EpochShift shift{10, 4};
  EXPECT_EQ(shift.Of(4), 0u);
  EXPECT_EQ(shift.Of(5), 1u);
  EXPECT_EQ(shift.Of(10), 1u);
  EXPECT_EQ(shift.Of(11), 1u);
  EXPECT_EQ(shift.Of(15), 5u);
  EXPECT_EQ(EpochShift{10}.Of(10), 0u);
}

}  // namespace
}  // namespace monolith
