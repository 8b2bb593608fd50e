#include "table/pooled_slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"

namespace monolith {
namespace {

// Slots of one table, each with its own rows: index = slot * kRowsPerSlot + the value of a generator.
constexpr int kRowsPerSlot = 7;

Pooling PoolingOf(int slot, bool ragged) {
  if (!ragged) return Pooling::kSum;
  return slot % 3 == 1 ? Pooling::kMean : slot % 3 == 2 ? Pooling::kSqrtN : Pooling::kSum;
}

struct Batch {
  Batch(int num_slots, int dim_of_rows, int64_t examples, bool ragged) : dim(dim_of_rows), num_examples(examples) {
    std::vector<PooledSlot> slots;
    for (int s = 0; s < num_slots; ++s) slots.push_back({0, int64_t{s} * dim, 0, PoolingOf(s, ragged), s});
    layout = std::make_unique<PooledLayout>(slots, std::vector<int>{dim}, int64_t{num_slots} * dim);
    for (int s = 0; s < num_slots; ++s) {
      ids_per_example.push_back(ragged ? -1 : 1);
      int64_t end = 0;
      if (ragged) row_splits.push_back(0);
      for (int64_t e = 0; e < examples; ++e) {
        lengths.push_back(ragged ? (e + s) % 4 : 1);
        end += lengths.back();
        if (ragged) row_splits.push_back(end);
      }
      for (int64_t i = 0; i < end; ++i)
        inverse.push_back(s * kRowsPerSlot + static_cast<int32_t>(random() % kRowsPerSlot));
    }
    splits = {0, int64_t{num_slots} * kRowsPerSlot};
    values.resize(splits.back() * dim);
    for (float& value : values) value = Draw();
  }

  float Draw() { return static_cast<float>(random() % 2000) / 1000.0f - 1.0f; }
  PooledShape shape() const { return {num_examples, ids_per_example, row_splits}; }
  int num_slots() const { return static_cast<int>(ids_per_example.size()); }

  // Calls body(slot, example, ids of the example) in the order of summation.
  template <typename Body>
  void ForEach(const Body& body) const {
    size_t at = 0;
    for (int s = 0; s < num_slots(); ++s) {
      for (int64_t e = 0; e < num_examples; ++e) {
        const auto count = static_cast<size_t>(lengths[s * num_examples + e]);
        body(s, e, std::span(inverse).subspan(at, count));
        at += count;
      }
    }
  }

  std::mt19937 random{5};
  int dim;
  int64_t num_examples;
  std::unique_ptr<PooledLayout> layout;
  std::vector<int64_t> ids_per_example, row_splits, lengths, splits;
  std::vector<int32_t> inverse;
  std::vector<float> values;
};

float ScaleOf(int slot, bool ragged, size_t count) {
  const auto ids = static_cast<double>(count);
  const Pooling pooling = PoolingOf(slot, ragged);
  return static_cast<float>(pooling == Pooling::kMean ? 1 / ids : pooling == Pooling::kSqrtN ? 1 / std::sqrt(ids) : 1);
}

class PooledSlots : public testing::TestWithParam<std::tuple<int, bool, int>> {
 protected:
  void SetUp() override { SetNumThreads(std::get<2>(GetParam())); }
  void TearDown() override { SetNumThreads(1); }
};

TEST_P(PooledSlots, PoolsLikeAPlainLoop) {
  const auto [dim, ragged, threads] = GetParam();
  const Batch batch(5, dim, 301, ragged);
  std::vector<float> expected(batch.num_examples * batch.layout->width(), 0.0f);
  batch.ForEach([&, d = dim, r = ragged](int s, int64_t e, std::span<const int32_t> places) {
    float* output = expected.data() + e * batch.layout->width() + s * d;
    for (size_t i = 0; i < places.size(); ++i) {
      for (int lane = 0; lane < d; ++lane) output[lane] += batch.values[places[i] * d + lane];
    }
    for (int lane = 0; lane < d && places.size() > 1; ++lane) output[lane] *= ScaleOf(s, r, places.size());
  });
  std::vector<float> outputs(expected.size(), std::numeric_limits<float>::quiet_NaN());
  batch.layout->Pool(batch.shape(), batch.splits, batch.inverse, batch.values, outputs);
  EXPECT_EQ(outputs, expected);
}

TEST_P(PooledSlots, SumsLikeAPlainLoopWhereverGradientsLie) {
  const auto [dim, ragged, threads] = GetParam();
  Batch batch(5, dim, 301, ragged);
  const int64_t stride = batch.layout->width() + 3;  // rows begin anywhere in a line, with a gap between examples
  std::vector<float> rows(batch.num_examples * stride - 3);  // nothing after the last float
  for (float& each : rows) each = batch.Draw();
  std::vector<float> expected(batch.values.size(), 0.0f);
  batch.ForEach([&, d = dim, r = ragged](int s, int64_t e, std::span<const int32_t> places) {
    for (const int32_t place : places) {
      for (int lane = 0; lane < d; ++lane) {
        expected[place * d + lane] += rows[e * stride + s * d + lane] * ScaleOf(s, r, places.size());
      }
    }
  });
  const auto gradients = batch.layout->GradientsOf({rows.data(), batch.layout->width(), stride});
  Occurrences plan;
  plan.splits = batch.splits;
  plan.inverse = batch.inverse;
  std::vector<float> sums(batch.values.size(), std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(batch.layout->SumGradients(batch.shape(), plan, gradients, sums));
  EXPECT_EQ(sums, expected);

  rows[7 * stride + 4 * dim] = std::numeric_limits<float>::infinity();
  const bool counts = !ragged || batch.lengths[4 * batch.num_examples + 7] > 0;
  EXPECT_EQ(batch.layout->SumGradients(batch.shape(), plan, gradients, sums), !counts);
}

INSTANTIATE_TEST_SUITE_P(Dims, PooledSlots,
                         testing::Combine(testing::Values(1, 3, 8, 13, 16, 32, 40), testing::Bool(),
                                          testing::Values(1, 3)));

TEST(PooledSlotsTest, FindsTheGradientOfEachSlotInThatOfAll) {
  const PooledLayout layout({{0, 2, 0, Pooling::kSum, 0}, {1, 0, 0, Pooling::kSum, 1}}, {3, 2}, 5);
  const std::vector<float> whole(10);
  const auto gradients = layout.GradientsOf({whole.data(), 5, 5});
  ASSERT_EQ(gradients.size(), 2u);
  EXPECT_EQ(gradients[0].rows, whole.data() + 2);
  EXPECT_EQ(gradients[0].width, 3);
  EXPECT_EQ(gradients[1].rows, whole.data());
  EXPECT_EQ(gradients[1].width, 2);
  EXPECT_EQ(gradients[1].stride, 5);
  EXPECT_EQ(layout.GradientsOf({nullptr, 5, 5})[1].rows, nullptr);
  EXPECT_THROW(layout.GradientsOf({whole.data(), 4, 5}), Error);
}

}  // namespace
}  // namespace monolith
