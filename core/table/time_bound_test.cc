#include "table/time_bound.h"

#include <gtest/gtest.h>

#include <vector>

namespace monolith {
namespace {

constexpr int64_t kNow = 1'700'000'000, kDay = 86'400, kWrong = 4'102'444'800;

std::vector<int64_t> Bounded(const std::vector<int64_t>& times, int64_t clock) {
  const auto bounded = BoundTimes(times, clock);
  return bounded ? bounded->times : times;
}

TEST(BoundTimes, LeavesTimesUpToADayBeyondTheClock) {
  EXPECT_FALSE(BoundTimes(std::vector<int64_t>{}, kNow));
  EXPECT_FALSE(BoundTimes(std::vector<int64_t>{0, kNow - 90 * kDay, kNow + kDay}, kNow));
  EXPECT_TRUE(BoundTimes(std::vector<int64_t>{0, kNow + kDay + 1}, kNow));
}

TEST(BoundTimes, AMinorityOfWrongTimesMovesNothing) {
  const auto bounded = BoundTimes(std::vector<int64_t>{kNow - 5, kWrong, kNow + 7, kWrong, kNow - 1}, kNow);
  ASSERT_TRUE(bounded);
  EXPECT_EQ(bounded->times, (std::vector<int64_t>{kNow - 5, kNow + 7, kNow + 7, kNow + 7, kNow - 1}));
  EXPECT_EQ(bounded->num_ahead, 2);
  EXPECT_EQ(Bounded({kNow - 9 * kDay, kWrong}, kNow), (std::vector<int64_t>{kNow - 9 * kDay, kNow}));
}

TEST(BoundTimes, TheMedianIsTheLowerOne) {
  EXPECT_EQ(Bounded({kNow + 3, kWrong}, kNow), (std::vector<int64_t>{kNow + 3, kNow + 3}));
}

TEST(BoundTimes, ACallOfWrongTimesAloneMovesTheClockByADay) {
  EXPECT_EQ(Bounded({kWrong}, kNow), std::vector<int64_t>{kNow + kDay});
  EXPECT_EQ(Bounded({kWrong, kWrong - 1, kNow}, kNow), (std::vector<int64_t>{kNow + kDay, kNow + kDay, kNow}));
}

TEST(BoundTimes, AGapClosesByADayWithEachCall) {
  const int64_t after = kNow + 2 * kDay + 100;
  int64_t clock = kNow;
  for (const int64_t expected : {kNow + kDay, kNow + 2 * kDay, after, after}) {
    clock = Bounded({after, after}, clock)[0];
    EXPECT_EQ(clock, expected);
  }
}

TEST(BoundTimes, WithoutAClockTheMedianIsOne) {
  EXPECT_FALSE(BoundTimes(std::vector<int64_t>{kNow}, 0));
  EXPECT_FALSE(BoundTimes(std::vector<int64_t>{kNow, kNow, kNow + kDay}, 0));
  EXPECT_EQ(Bounded({kNow, kWrong, kNow + 60, kNow + kDay}, 0),
            (std::vector<int64_t>{kNow, kNow + 60, kNow + 60, kNow + kDay}));
}

TEST(BoundTimes, WithoutAClockTimesMayLieAsFarApartAsTheyDo) {
  std::vector<int64_t> month;
  for (int64_t day = 0; day < 30; ++day) month.push_back(kNow + (day * 7 % 30) * kDay);
  EXPECT_FALSE(BoundTimes(month, 0));
  month.push_back(kWrong);
  month.push_back(0);  // a missing time does not affect the spread of the others
  const auto bounded = BoundTimes(month, 0);
  ASSERT_TRUE(bounded);
  EXPECT_EQ(bounded->num_ahead, 1);
  EXPECT_EQ(bounded->times[30], kNow + 14 * kDay);
  EXPECT_TRUE(BoundTimes(month, kNow + 20 * kDay));
}

}  // namespace
}  // namespace monolith
