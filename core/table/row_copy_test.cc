#include "table/row_copy.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <limits>
#include <vector>

namespace monolith {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(AllFiniteTest, EveryFiniteFloatIsFinite) {
  EXPECT_TRUE(AllFinite(nullptr, 0));
  const float finite[] = {0.0f, -0.0f, 1.0f, -1.0f, FLT_MAX, -FLT_MAX, FLT_MIN, FLT_TRUE_MIN, -FLT_TRUE_MIN};
  EXPECT_TRUE(AllFinite(finite, std::size(finite)));
  EXPECT_TRUE(AllFinite(std::vector<float>(1000, FLT_MAX).data(), 1000)) << "what is finite must not be added up";
}

TEST(AllFiniteTest, OneThatIsNotIsFoundAtEveryPlace) {
  for (const float bad : {kInfinity, -kInfinity, kNan, -kNan, std::numeric_limits<float>::signaling_NaN()}) {
    for (size_t count = 1; count <= 40; ++count) {
      for (size_t place = 0; place < count; ++place) {
        std::vector<float> values(count, -2.0f);
        values[place] = bad;
        EXPECT_FALSE(AllFinite(values.data(), count)) << bad << " at " << place << " of " << count;
      }
    }
  }
}

}  // namespace
}  // namespace monolith
