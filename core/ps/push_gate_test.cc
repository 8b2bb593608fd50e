#include "ps/push_gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace monolith::ps {
namespace {

constexpr double kLong = 60.0;

TEST(PushGateTest, WhileHeldOnlyWhatIsAllowedPasses) {
  int opened = 0;
  PushGate gate([&] { ++opened; });
  ASSERT_TRUE(gate.Enter(3, 10, 9));
  gate.Leave();
  ASSERT_TRUE(gate.Hold(kLong));
  EXPECT_FALSE(gate.Enter(3, 11, 10));
  EXPECT_TRUE(gate.Enter(3, 10, 10)) << "one that was applied before is repeated";
  gate.Leave();
  gate.Allow({{3, 11}});
  EXPECT_EQ(opened, 1);
  EXPECT_TRUE(gate.Enter(3, 11, 10));
  gate.Leave();
  EXPECT_FALSE(gate.Enter(3, 12, 11));
  EXPECT_FALSE(gate.Enter(4, 0, -1)) << "another worker";
  gate.Open();
  EXPECT_EQ(opened, 2);
  EXPECT_TRUE(gate.Enter(3, 12, 11));
  gate.Leave();
}

TEST(PushGateTest, HoldingWaitsForThoseInside) {
  PushGate gate([] {});
  ASSERT_TRUE(gate.Enter(0, 0, -1));
  std::atomic<bool> is_held{false};
  std::thread holder([&] {
    EXPECT_TRUE(gate.Hold(kLong));
    is_held = true;
  });
  while (gate.Enter(0, 1, 0)) gate.Leave();  // until Hold() has started
  EXPECT_FALSE(is_held);
  gate.Leave();
  holder.join();
  EXPECT_TRUE(is_held);
}

TEST(PushGateTest, ItOpensByItselfWhenItsTimeIsOver) {
  PushGate gate([] {});
  ASSERT_TRUE(gate.Hold(0.01));
  while (!gate.Enter(0, 0, -1)) std::this_thread::yield();
  EXPECT_FALSE(gate.Hold(0.01)) << "somebody is inside";
  gate.Leave();
}

TEST(PushGateTest, HoldingAnewForgetsWhatWasAllowed) {
  PushGate gate([] {});
  ASSERT_TRUE(gate.Hold(kLong));
  gate.Allow({{1, 5}});
  ASSERT_TRUE(gate.Hold(kLong));
  EXPECT_FALSE(gate.Enter(1, 5, 4));
}

}  // namespace
}  // namespace monolith::ps
