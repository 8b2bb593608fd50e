// Sums of gradients against a loop over the input, bit for bit: for every layout, for rows of any size, and for any
// number of threads.
#include "table/gradient_sums.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "table/plan.h"

namespace monolith {
namespace {

constexpr int64_t kIdsPerTable = 5000;  // of which most are repeated; enough for several threads

std::vector<float> Random(int64_t count) {
  std::mt19937 generator(7);
  std::uniform_real_distribution<float> values(-1.0f, 1.0f);
  std::vector<float> all(count);
  for (float& value : all) value = values(generator);
  return all;
}

// A batch of some tables, a gradient row for each of its ids, and the expected sums.
class Batch {
 public:
  explicit Batch(const std::vector<int>& dims) : dims_(dims) {
    std::vector<int64_t> ids, splits = {0};
    int64_t values = 0;
    for (const int dim : dims) {
      for (int64_t i = 0; i < kIdsPerTable; ++i) ids.push_back(i * i % 1777);
      splits.push_back(static_cast<int64_t>(ids.size()));
      first_value_.push_back(values);
      values += kIdsPerTable * dim;
    }
    plan_ = MakePlan(ids, splits, true);
    gradients_ = Random(values);
  }

  const Plan& plan() const { return plan_; }
  const std::vector<float>& gradients() const { return gradients_; }
  std::vector<float>& gradients() { return gradients_; }
  const float* GradientOf(int64_t position) const {
    const auto table = static_cast<size_t>(position / kIdsPerTable);
    return gradients_.data() + first_value_[table] + position % kIdsPerTable * dims_[table];
  }

  GradientSums Sum(const GradientLayout& layout) const { return GradientSums(OccurrencesOf(plan_), dims_, layout); }
  // With gradient_of(position) times scale_of(position), all of them times `scale`.
  template <typename GradientOf, typename ScaleOf>
  void Expect(const GradientSums& sums, GradientOf&& gradient_of, ScaleOf&& scale_of, float scale) const {
    for (int64_t place = 0; place < plan_.num_unique(); ++place) {
      const int table = static_cast<int>(plan_.order[plan_.starts[place]] / kIdsPerTable);
      for (int d = 0; d < dims_[table]; ++d) {
        float expected = 0.0f;
        for (int32_t k = plan_.starts[place]; k < plan_.starts[place + 1]; ++k) {
          expected += gradient_of(plan_.order[k])[d] * scale_of(plan_.order[k]);
        }
        if (scale != 1.0f) expected *= scale;
        ASSERT_EQ(std::bit_cast<uint32_t>(sums.Of(place, table)[d]), std::bit_cast<uint32_t>(expected))
            << "place " << place << ", dim " << d << " of " << dims_[table];
      }
    }
  }

 private:
  const std::vector<int> dims_;
  Plan plan_;
  std::vector<int64_t> first_value_;
  std::vector<float> gradients_;
};

constexpr auto kUnscaled = [](int64_t) { return 1.0f; };

class GradientSumsTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { SetNumThreads(GetParam()); }
  void TearDown() override { SetNumThreads(before_); }

 private:
  const int before_ = NumThreads();
};
INSTANTIATE_TEST_SUITE_P(Threads, GradientSumsTest, testing::Values(1, 4));

TEST_P(GradientSumsTest, InputOrderForRowsOfAnySize) {
  for (const int dim : {1, 2, 3, 4, 7, 8, 16, 17, 20, 23, 32, 64, 77}) {
    const Batch batch({dim});
    for (const float scale : {1.0f, 0.3f}) {
      const GradientSums sums = batch.Sum({.values = batch.gradients(), .scale = scale});
      EXPECT_TRUE(sums.all_finite());
      batch.Expect(sums, [&](int64_t i) { return batch.GradientOf(i); }, kUnscaled, scale);
    }
  }
}

TEST_P(GradientSumsTest, SeveralTables) {
  const Batch batch({16, 5, 1, 32});
  const GradientSums sums = batch.Sum({.values = batch.gradients(), .scale = 0.7f});
  batch.Expect(sums, [&](int64_t i) { return batch.GradientOf(i); }, kUnscaled, 0.7f);
}

TEST_P(GradientSumsTest, SharedRowsWithAScaleForEachId) {
  constexpr int kDim = 20;
  const Batch batch({kDim});
  std::vector<int32_t> rows(kIdsPerTable);
  for (int64_t i = 0; i < kIdsPerTable; ++i) rows[i] = static_cast<int32_t>(i * 31 % 200);
  const std::vector<float> scales = Random(kIdsPerTable);
  const GradientSums sums = batch.Sum({.values = batch.gradients(), .rows = rows, .scales = scales});
  batch.Expect(
      sums, [&](int64_t i) { return batch.gradients().data() + int64_t{rows[i]} * kDim; },
      [&](int64_t i) { return scales[i]; }, 1.0f);
}

TEST_P(GradientSumsTest, GradientsAnywhereInMemory) {
  const Batch batch({16, 3});
  std::vector<const float*> sources(batch.plan().num_ids());
  for (size_t i = 0; i < sources.size(); ++i) sources[i] = batch.gradients().data() + (i * 7 % 1000);
  const GradientSums sums = batch.Sum({.sources = sources});
  batch.Expect(sums, [&](int64_t i) { return sources[i]; }, kUnscaled, 1.0f);
}

TEST_P(GradientSumsTest, SumsThatWereGivenAreScaled) {
  const Batch batch({16});
  const std::vector<float> given = Random(batch.plan().num_unique() * 16);
  const GradientSums sums = batch.Sum({.values = given, .per_unique = true, .scale = 0.3f});
  for (size_t i = 0; i < given.size(); ++i) ASSERT_EQ(sums.Of(0, 0)[i], given[i] * 0.3f) << i;
}

TEST_P(GradientSumsTest, NegativeZerosAddUpToZero) {
  Batch batch({16});
  for (float& value : batch.gradients()) value = -0.0f;
  const GradientSums sums = batch.Sum({.values = batch.gradients()});
  for (int64_t i = 0; i < sums.num_sums(); ++i) ASSERT_EQ(std::bit_cast<uint32_t>(sums.Of(0, 0)[i]), 0u) << i;
}

TEST_P(GradientSumsTest, FindsTheFirstPositionThatIsNotFinite) {
  const auto every_table = [](int) { return true; };
  Batch batch({16});
  batch.gradients()[4321 * 16 + 15] = std::numeric_limits<float>::infinity();
  const GradientSums sums = batch.Sum({.values = batch.gradients()});
  EXPECT_FALSE(sums.all_finite());
  EXPECT_EQ(sums.FirstNonFinite(every_table), 4321);
  batch.gradients()[4321 * 16 + 15] = 0.0f;
  EXPECT_TRUE(batch.Sum({.values = batch.gradients()}).all_finite());
}

TEST_P(GradientSumsTest, ScaleCanMakeASumInfinite) {
  const Batch batch({4});
  const std::vector<float> given(batch.plan().num_unique() * 4, 1e30f);
  EXPECT_FALSE(batch.Sum({.values = given, .per_unique = true, .scale = 1e30f}).all_finite());
}

TEST_P(GradientSumsTest, RefusesSizesThatAreNotThePlans) {
  const Batch batch({4});
  const std::vector<float> few(7);
  EXPECT_THROW(batch.Sum({.values = few}), Error);
  const std::vector<int32_t> outside(kIdsPerTable, kIdsPerTable);
  EXPECT_THROW(batch.Sum({.values = batch.gradients(), .rows = outside}), Error);
}

}  // namespace
}  // namespace monolith
