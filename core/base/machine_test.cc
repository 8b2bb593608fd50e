#include "base/machine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace monolith {
namespace {

TEST(MachineTest, SelectedWordIsTheOneInBrackets) {
  EXPECT_EQ(SelectedWord("always [madvise] never"), "madvise");
  EXPECT_EQ(SelectedWord("[always] madvise never"), "always");
  EXPECT_EQ(SelectedWord("always madvise [never]"), "never");
}

TEST(MachineTest, LinesWithoutASelectionAreUnknown) {
  for (const char* line : {"", "never", "[", "]", "[]", "][", "always [madvise"}) {
    EXPECT_EQ(SelectedWord(line), "unknown") << "line: " << line;
  }
}

TEST(MachineTest, HugePagesIsOneOfTheKernelsModes) {
  const std::set<std::string> modes = {"always", "madvise", "never", "unknown"};
  EXPECT_TRUE(modes.contains(HugePages())) << HugePages();
}

TEST(MachineTest, FeaturesAreSortedAndNamedOnce) {
  const std::vector<std::string> features = CpuFeatures();
  EXPECT_TRUE(std::is_sorted(features.begin(), features.end()));
  EXPECT_EQ(std::set<std::string>(features.begin(), features.end()).size(), features.size());
#if defined(__aarch64__) || defined(__x86_64__)
  EXPECT_FALSE(features.empty());
#endif
}

}  // namespace
}  // namespace monolith
