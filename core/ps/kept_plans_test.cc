#include "ps/kept_plans.h"

#include <gtest/gtest.h>

namespace monolith::ps {
namespace {

std::shared_ptr<const Plan> PlanOf(size_t num_ids) {
  const std::vector<int64_t> splits = {0, static_cast<int64_t>(num_ids)};
  std::vector<int64_t> ids(num_ids);
  for (size_t i = 0; i < num_ids; ++i) ids[i] = static_cast<int64_t>(i);
  return std::make_shared<Plan>(MakePlan(ids, splits, true));
}

TEST(KeptPlansTest, APlanIsTakenOnceByWhoKeptIt) {
  KeptPlans kept(1 << 30);
  const auto plan = PlanOf(10);
  kept.Keep(1, 7, plan);
  EXPECT_EQ(kept.Take(2, 7), nullptr);
  EXPECT_EQ(kept.Take(1, 8), nullptr);
  EXPECT_EQ(kept.Take(1, 7), plan);
  EXPECT_EQ(kept.Take(1, 7), nullptr);
}

TEST(KeptPlansTest, TheOldestGoWhenThereIsTooMuch) {
  const uint64_t one = 8 * 1025 + 100 * 24;
  KeptPlans kept(2 * one);
  for (uint64_t ticket = 1; ticket <= 3; ++ticket) kept.Keep(0, ticket, PlanOf(100));
  EXPECT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept.Take(0, 1), nullptr);
  EXPECT_NE(kept.Take(0, 2), nullptr);
  EXPECT_NE(kept.Take(0, 3), nullptr);
  KeptPlans nothing(0);
  nothing.Keep(0, 1, PlanOf(1));
  EXPECT_EQ(nothing.size(), 0u);
}

TEST(KeptPlansTest, TheSameTicketReplacesAndDroppingForgets) {
  KeptPlans kept(1 << 30);
  kept.Keep(0, 1, PlanOf(1));
  const auto second = PlanOf(2);
  kept.Keep(0, 1, second);
  kept.Keep(0, 2, PlanOf(1));
  kept.Keep(5, 1, PlanOf(1));
  EXPECT_EQ(kept.size(), 3u);
  EXPECT_EQ(kept.Take(0, 1), second);
  kept.Drop(0, {2, 99});
  EXPECT_EQ(kept.size(), 1u);
  kept.DropAllOf(5);
  EXPECT_EQ(kept.size(), 0u);
}

}  // namespace
}  // namespace monolith::ps
