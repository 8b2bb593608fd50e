#include "base/instruction_set.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace monolith {
namespace {

class InstructionSetTest : public testing::Test {
 protected:
  void TearDown() override { UseInstructionSet(before_); }

 private:
  const std::string before_ = InstructionSetInUse();
};

TEST_F(InstructionSetTest, TheBaselineIsAlwaysThereAndEachCanBeUsed) {
  const std::vector<std::string> sets = AvailableInstructionSets();
  ASSERT_EQ(sets.front(), "baseline");
  for (const std::string& name : sets) {
    UseInstructionSet(name);
    EXPECT_EQ(InstructionSetInUse(), name);
  }
}

TEST_F(InstructionSetTest, OthersAreRefusedAndChangeNothing) {
  UseInstructionSet("baseline");
  for (const char* name : {"", "V3", "v5", "avx2", "baseline "}) {
    EXPECT_THROW(UseInstructionSet(name), Error) << name;
    EXPECT_EQ(InstructionSetInUse(), "baseline");
  }
}

// A product whose rounding is not that of a fused multiply-add.
TEST_F(InstructionSetTest, ResultsAreTheSameBits) {
  std::vector<float> first(1003), second(1003), expected;
  for (size_t i = 0; i < first.size(); ++i) {
    first[i] = 1.0f + static_cast<float>(i) * 0x1p-20f;
    second[i] = 1.0f / static_cast<float>(i + 3);
  }
  for (const std::string& name : AvailableInstructionSets()) {
    UseInstructionSet(name);
    std::vector<float> sums(first.size());
    const int answer = WithInstructions([&] {
      for (size_t i = 0; i < sums.size(); ++i) sums[i] = first[i] * first[i] - second[i] * first[i];
      return 42;
    });
    EXPECT_EQ(answer, 42);
    if (expected.empty()) expected = sums;
    EXPECT_EQ(sums, expected) << name;
  }
}

}  // namespace
}  // namespace monolith
