#include "device/cpu_launcher.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "base/error.h"
#include "device/launchers_for_test.h"

namespace monolith::device {
namespace {

using LaunchTest = LauncherTest;

TEST_P(LaunchTest, EveryThreadRunsOnce) {
  for (const uint32_t count : {0u, 1u, kBlock - 1, kBlock, kBlock + 1, 100 * kBlock}) {
    Shared<uint32_t> firsts(count);
    Shared<int32_t> runs(count + 1);
    for (uint32_t i = 0; i < count; ++i) firsts[i] = i / 3;
    Shared<uint32_t> place_of(count);
    for (uint32_t i = 0; i < count; ++i) place_of[i] = i;
    Shared<int32_t> inverse(count, -1);
    Launch(count, NumberPositions{count, firsts.data(), place_of.data(), inverse.data(), runs.data()});
    for (uint32_t i = 0; i < count; ++i) ASSERT_EQ(inverse[i], static_cast<int32_t>(i / 3));
    int64_t total = 0;
    for (const int32_t count_of_place : runs) total += count_of_place;
    EXPECT_EQ(total, int64_t{count}) << "an addition was lost";
  }
}

TEST_P(LaunchTest, BlocksShareWorkByTheSizeOfTheGrid) {
  const Shared<uint64_t> words(10'000, kErasedWord);
  for (const uint64_t num_blocks : {1, 2, 7, 100}) {
    Shared<uint32_t> num_live(1), num_erased(1);
    launcher().LaunchBlocks(num_blocks, CountWords{words.data(), words.size(), num_live.data(), num_erased.data()},
                            Stream{});
    EXPECT_EQ(num_live[0], 0u);
    EXPECT_EQ(num_erased[0], words.size());
  }
}

TEST_P(LaunchTest, TooManyBlocksAreRefused) {
  EXPECT_THROW(launcher().LaunchBlocks(uint64_t{1} << 31, CountWords{}, Stream{}), Error);
}

INSTANTIATE_FOR_LAUNCHERS(LaunchTest);

}  // namespace
}  // namespace monolith::device
