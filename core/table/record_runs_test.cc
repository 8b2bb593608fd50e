#include "table/record_runs.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace monolith {
namespace {

constexpr uint32_t kUnit = RecordPool::kUnit;

std::vector<uint32_t> RecordsOf(const RecordRuns& runs) {
  std::vector<uint32_t> records;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (uint64_t record = runs[i].begin; record < runs[i].end(); ++record)
      records.push_back(static_cast<uint32_t>(record));
  }
  return records;
}

TEST(RecordRunsTest, HoldsExactlyWhatWasAddedAndFindsIt) {
  std::mt19937 random(301);
  RecordRuns runs;
  std::vector<uint32_t> expected;
  for (uint32_t next = 0; expected.size() < 20000;) {
    if (random() % 2 == 0) next += kUnit * (1 + random() % 5);
    const uint32_t count = kUnit * (1 + random() % (RecordRuns::kLongestRun / kUnit));
    runs.Add({next, count});
    for (uint32_t i = 0; i < count; ++i) expected.push_back(next + i);
    next += count;
    ASSERT_EQ(runs.back().end(), next);
  }
  EXPECT_EQ(RecordsOf(runs), expected);
  for (uint32_t record = 0; record <= expected.back(); record += 3) {
    const size_t first = runs.FirstFrom(record);
    ASSERT_GT(runs[first].end(), record);
    ASSERT_TRUE(first == 0 || runs[first - 1].end() <= record);
  }
  EXPECT_EQ(runs.FirstFrom(expected.back() + 1), runs.size());
}

TEST(RecordRunsTest, RunsThatFollowEachOtherAreListedAsOneUpToTheLongest) {
  RecordRuns runs;
  EXPECT_TRUE(runs.empty());
  for (uint32_t i = 0; i < 2 * RecordRuns::kLongestRun / kUnit; ++i) runs.Add({i * kUnit, kUnit});
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].count, RecordRuns::kLongestRun);
  EXPECT_EQ(runs[1].begin, RecordRuns::kLongestRun);
  runs.Clear();
  EXPECT_TRUE(runs.empty());
}

TEST(RecordRunsTest, TheLastRecordsOfATableFit) {
  RecordRuns runs;
  const uint32_t last = 0u - 2 * kUnit;  // the last run below the number that stands for none
  runs.Add({last - RecordRuns::kLongestRun, RecordRuns::kLongestRun});
  runs.Add({last, kUnit});
  EXPECT_EQ(runs.back().begin, last);
  EXPECT_EQ(runs.back().count, kUnit);
  EXPECT_EQ(runs.FirstFrom(last), 1u);
}

}  // namespace
}  // namespace monolith
