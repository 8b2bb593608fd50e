#include "memory/record_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace monolith {
namespace {

constexpr uint32_t kUnit = RecordPool::kUnit;
using Records = RecordPool::Run;

TEST(RecordPoolTest, ThreadsGetRecordsOfTheirOwnThatLieTogether) {
  constexpr int kThreads = 5, kRuns = 4000;
  RecordPool pool(24);
  // So that threads reserve records from the start: in a small pool the scheduler decides which thread gets the next
  // ones.
  for (int i = 0; i < 100000; ++i) pool.Allocate(kUnit, 0);
  std::vector<std::vector<Records>> runs(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&pool, &mine = runs[static_cast<size_t>(t)]] {
      for (int i = 0; i < kRuns; ++i) {
        mine.push_back(pool.Allocate(kUnit * (1 + i % 3), 0));
        *pool.AtAllocated(mine.back().begin) = std::byte{1};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<Records> all;
  for (const std::vector<Records>& mine : runs) {
    int followed = 0;
    for (size_t i = 1; i < mine.size(); ++i) followed += mine[i].begin == mine[i - 1].end();
    EXPECT_GT(followed, kRuns * 3 / 4);
    all.insert(all.end(), mine.begin(), mine.end());
  }
  std::sort(all.begin(), all.end(), [](const Records& a, const Records& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_TRUE(all[i].count > 0 && all[i].begin % kUnit == 0 && all[i].count % kUnit == 0);
    ASSERT_TRUE(i == 0 || all[i - 1].end() <= all[i].begin);
    ASSERT_LE(all[i].end(), pool.allocated());
  }
}

TEST(RecordPoolTest, NeverGivesLowerNumbersThanAskedFor) {
  // Threads share lanes by their numbers: of two threads made one after the other, at most one shares this thread's.
  for (int attempt = 0; attempt < 2; ++attempt) {
    RecordPool pool(24);
    for (int i = 0; i < 100000; ++i) pool.Allocate(kUnit, 0);  // so that threads reserve records
    const Records mine = pool.Allocate(kUnit, 0);
    Records others{};
    std::thread([&] { others = pool.Allocate(kUnit, 0); }).join();
    if (others.begin == mine.end()) continue;
    ASSERT_GT(others.end(), mine.end());
    EXPECT_GE(pool.Allocate(kUnit, others.end()).begin, others.end());
    EXPECT_EQ(pool.Allocate(kUnit, 0).begin, mine.end());  // reserved records are not lost
    return;
  }
  FAIL() << "both threads shared our lane";
}

TEST(RecordPoolTest, ASmallPoolKeepsNothingAndAClearedOneBeginsAnew) {
  RecordPool pool(24);
  EXPECT_EQ(pool.Allocate(kUnit, 0).begin, 0u);
  EXPECT_EQ(pool.allocated(), kUnit);
  for (int i = 0; i < 5000; ++i) pool.Allocate(kUnit, 0);
  pool.Clear();
  EXPECT_EQ(pool.allocated(), 0u);
  EXPECT_EQ(pool.Allocate(2 * kUnit, 0).begin, 0u);
  EXPECT_EQ(pool.allocated(), 2 * kUnit);
}

}  // namespace
}  // namespace monolith
