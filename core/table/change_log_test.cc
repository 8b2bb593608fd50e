#include "table/change_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace monolith {
namespace {

constexpr size_t kShardSize = 4096;
constexpr uint32_t kMostInLine = 13;

// The log together with a reference of everything recorded in it.
class CheckedLog {
 public:
  CheckedLog() { log.Restart(epoch - 1); }

  void Add(uint32_t row) {
    log.Add(row, epoch, [] { return kShardSize; });
    noted_[epoch].insert(row);
  }

  // Whether the log reaches back to an epoch; if it does, it must list all rows since.
  bool Reaches(uint32_t first) const {
    std::vector<uint32_t> rows;
    if (!log.From(first, &rows)) return false;
    std::set<uint32_t> expected;
    for (auto at = noted_.lower_bound(first); at != noted_.end(); ++at) {
      expected.insert(at->second.begin(), at->second.end());
    }
    EXPECT_EQ(rows, std::vector<uint32_t>(expected.begin(), expected.end())) << "from epoch " << first;
    return true;
  }

  void Forget(uint32_t before) {
    log.Forget(before);
    noted_.erase(noted_.begin(), noted_.upper_bound(before));
  }

  ChangeLog log;
  uint32_t epoch = 5;

 private:
  std::map<uint32_t, std::set<uint32_t>> noted_;
};

TEST(ChangeLogLineTest, TellsTheRowsOfALineThatIsNotFullYetAndOfOneThatRanOver) {
  for (const uint32_t count : {1u, kMostInLine - 1, kMostInLine, kMostInLine + 1, 3 * kMostInLine}) {
    CheckedLog checked;
    for (uint32_t i = 0; i < count; ++i) checked.Add(1000 - 7 * i);
    EXPECT_TRUE(checked.Reaches(5));
    EXPECT_TRUE(checked.Reaches(6)) << "nothing has changed since";
    EXPECT_FALSE(checked.Reaches(4)) << "the log was begun later";
  }
}

TEST(ChangeLogLineTest, WhatIsForgottenIsNotToldAgainWhenTheLineRunsOver) {
  CheckedLog checked;
  for (uint32_t row = 0; row < 5; ++row) checked.Add(row);
  checked.Forget(5);
  EXPECT_FALSE(checked.Reaches(5));
  EXPECT_TRUE(checked.Reaches(6));
  checked.epoch = 6;
  for (uint32_t row = 100; row < 150; ++row) checked.Add(row);
  EXPECT_TRUE(checked.Reaches(6));
}

TEST(ChangeLogLineTest, ALogThatWasStoppedTellsNothingOfBefore) {
  CheckedLog checked;
  for (uint32_t row = 0; row < 20; ++row) checked.Add(row);
  checked.log.Restart(UINT32_MAX);
  std::vector<uint32_t> rows;
  EXPECT_FALSE(checked.log.From(5, &rows));
  EXPECT_TRUE(rows.empty());
  EXPECT_EQ(checked.log.MemoryBytes(), 0u);
}

TEST(ChangeLogLineTest, RenumberedEpochsGoOnInTheSameLine) {
  CheckedLog checked;
  for (uint32_t row = 0; row < 3; ++row) checked.Add(row);
  checked.log.Shift(EpochShift{2});
  std::vector<uint32_t> rows;
  checked.log.Add(9, 3, [] { return kShardSize; });
  ASSERT_TRUE(checked.log.From(3, &rows));
  EXPECT_EQ(rows, (std::vector<uint32_t>{0, 1, 2, 9}));
}

TEST(ChangeLogLineTest, AgreesWithEverythingThatWasNotedWhateverIsDone) {
  std::mt19937 random(301);
  for (int round = 0; round < 30; ++round) {
    CheckedLog checked;
    for (int call = 0; call < 300; ++call) {
      const uint32_t kind = random() % 16;
      if (kind == 0) {
        ++checked.epoch;
      } else if (kind == 1) {
        checked.Forget(checked.epoch - std::min(checked.epoch, static_cast<uint32_t>(1 + random() % 4)));
      } else {
        for (uint32_t i = 1 + random() % (round % 2 == 0 ? 4 : 60); i > 0; --i) checked.Add(random() % kShardSize);
      }
      for (uint32_t back = 0; back < 5 && back < checked.epoch; ++back) checked.Reaches(checked.epoch - back);
    }
    EXPECT_TRUE(checked.Reaches(checked.epoch + 1));
  }
}

}  // namespace
}  // namespace monolith
