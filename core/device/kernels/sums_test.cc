#include "device/kernels/sums.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "device/plan_for_test.h"

namespace monolith::device {
namespace {

// A batch with gradients of several tables, and the sums that the kernels have to give.
struct Batch {
  PlanForTest plan;
  Shared<uint32_t> dims;
  Shared<int64_t> offsets, sources;
  Shared<float> gradients, expected;
  Shared<float> scales;  // empty: there are none

  ValueLayout layout() const {
    const bool has_many = plan.num_tables > 1;
    return {dims[0], has_many ? dims.data() : nullptr, has_many ? offsets.data() : nullptr};
  }
};

class SumKernelsTest : public LauncherTest {
 protected:
  // Half of the occurrences are those of a few ids. Gradients lie in another order than occurrences.
  Batch MakeBatch(Shared<uint32_t> dims, int64_t ids_of_table, uint32_t least_hot) {
    std::mt19937_64 random(dims[0]);
    Batch batch;
    batch.dims = std::move(dims);
    std::vector<int64_t> ids, splits = {0}, source_of;
    for (const uint32_t dim : batch.dims) {
      for (int64_t i = 0; i < ids_of_table; ++i) {
        ids.push_back(static_cast<int64_t>(random() % (random() % 2 ? 3 : 400)));
        source_of.push_back(static_cast<int64_t>(batch.gradients.size()) + (ids_of_table - 1 - i) * dim);
      }
      splits.push_back(static_cast<int64_t>(ids.size()));
      batch.gradients.resize(batch.gradients.size() + static_cast<size_t>(ids_of_table) * dim);
    }
    for (float& value : batch.gradients) {
      value = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31f * (random() % 5 == 0 ? 1e6f : 1.0f);
    }
    batch.plan = MakeDevicePlan(launcher(), ids, splits, {}, {.least_hot = least_hot});
    for (const int64_t position : batch.plan.order) batch.sources.push_back(source_of[static_cast<size_t>(position)]);
    AddPlainly(batch);
    return batch;
  }

  static void AddPlainly(Batch& batch) {
    batch.offsets.clear();
    batch.expected.clear();
    for (uint32_t u = 0; u < batch.plan.unique.size(); ++u) {
      const uint32_t dim = batch.dims[batch.plan.ids().TableAt(u)];
      batch.offsets.push_back(static_cast<int64_t>(batch.expected.size()));
      for (uint32_t i = 0; i < dim; ++i) {
        const auto begin = static_cast<size_t>(batch.plan.starts[u]),
                   end = static_cast<size_t>(batch.plan.starts[u + 1]);
        float sum = 0.0f;
        for (size_t k = begin; k < end; ++k) {
          const bool has_gradient = batch.sources[k] != kNoGradient;
          const float given = has_gradient ? batch.gradients[static_cast<size_t>(batch.sources[k]) + i] : 0.0f;
          sum += given * (batch.scales.empty() ? 1.0f : batch.scales[k]);
        }
        batch.expected.push_back(sum);
      }
    }
  }

  template <int kWidth>
  Shared<float> Sum(const Batch& batch, uint32_t least_hot, uint32_t lane_bits, uint32_t* was_refused) {
    Shared<uint32_t> refused(1);
    const DistinctIds ids = batch.plan.ids();
    const GradientSource source = {ids,
                                   batch.layout(),
                                   batch.plan.starts.data(),
                                   batch.sources.data(),
                                   batch.scales.empty() ? nullptr : batch.scales.data(),
                                   batch.gradients.data()};
    const uint32_t most = *std::max_element(batch.dims.begin(), batch.dims.end());
    const uint32_t num_pieces = (most + SumHot<kWidth>::kPieceFloats - 1) / SumHot<kWidth>::kPieceFloats;
    const Shared<uint32_t> num_hot = {static_cast<uint32_t>(batch.plan.hot.size())};
    Shared<float> sums(batch.expected.size(), std::numeric_limits<float>::quiet_NaN());
    launcher().LaunchBlocks(
        launcher().num_concurrent_blocks(),
        SumHot<kWidth>{source, batch.plan.hot.data(), num_hot.data(), num_pieces, sums.data(), refused.data()},
        Stream{});
    Launch(uint64_t{ids.count} << lane_bits, SumFew<kWidth>{source, least_hot, lane_bits, sums.data(), refused.data()});
    *was_refused = refused[0];
    return sums;
  }

  template <int kWidth>
  void ExpectSums(const Batch& batch, uint32_t least_hot) {
    const uint32_t lane_bits = LaneBitsFor(batch.dims[0] / kWidth);
    uint32_t refused = 0;
    const Shared<float> sums = Sum<kWidth>(batch, least_hot, lane_bits, &refused);
    EXPECT_EQ(refused, 0u);
    ASSERT_EQ(sums.size(), batch.expected.size());
    for (size_t i = 0; i < sums.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(sums[i]), std::bit_cast<uint32_t>(batch.expected[i])) << i;
    }
  }
};

constexpr uint32_t kLeastHot = 32;

TEST_P(SumKernelsTest, AddInInputOrderAtEveryDim) {
  for (const uint32_t dim : {1, 3, 5, 16, 130}) {
    const Batch batch = MakeBatch({dim}, 1500, kLeastHot);
    ASSERT_GE(batch.plan.hot.size(), 3u);
    ExpectSums<1>(batch, kLeastHot);
    if (dim % 4 == 0) ExpectSums<4>(batch, kLeastHot);
  }
}

TEST_P(SumKernelsTest, AddLongRowsInPieces) {
  const Batch batch = MakeBatch({1024}, 120, 16);
  ASSERT_GE(batch.plan.hot.size(), 2u);
  ExpectSums<1>(batch, 16);
  ExpectSums<4>(batch, 16);
}

TEST_P(SumKernelsTest, AddForTablesOfSeveralDims) {
  ExpectSums<1>(MakeBatch({3, 200, 1}, 600, kLeastHot), kLeastHot);
  ExpectSums<4>(MakeBatch({8, 128, 4, 256}, 400, kLeastHot), kLeastHot);
}

TEST_P(SumKernelsTest, AddWhateverTheNumberOfOccurrences) {
  for (const int64_t count : {1, 2, 4, 5, 6, 255, 256, 257, 511, 513, 3000}) {  // around turns of a tile, too
    std::vector<int64_t> ids(static_cast<size_t>(count), 7);
    Batch batch;
    batch.dims = {4};
    batch.plan = MakeDevicePlan(launcher(), ids, std::vector<int64_t>{0, count}, {}, {.least_hot = 5});
    for (int64_t i = 0; i < count; ++i) batch.sources.push_back(4 * i);
    batch.gradients.resize(static_cast<size_t>(4 * count));
    for (size_t i = 0; i < batch.gradients.size(); ++i) batch.gradients[i] = 1.0f / static_cast<float>(i + 1);
    AddPlainly(batch);
    ExpectSums<4>(batch, 5);
    ExpectSums<1>(batch, 5);
  }
}

TEST_P(SumKernelsTest, ASumOfNegativeZerosIsZero) {
  Batch batch;
  batch.dims = {4};
  batch.plan = MakeDevicePlan(launcher(), std::vector<int64_t>{1, 2, 1, 2, 2, 2}, std::vector<int64_t>{0, 6}, {},
                              {.least_hot = 3});
  batch.gradients.assign(4, -0.0f);
  batch.sources.assign(6, 0);
  AddPlainly(batch);
  EXPECT_FALSE(std::signbit(batch.expected[0]));
  ExpectSums<4>(batch, 3);
}

TEST_P(SumKernelsTest, GradientsHaveFactorsAndSomeOccurrencesNone) {
  for (const uint32_t dim : {3, 8}) {
    Batch batch = MakeBatch({dim}, 1500, kLeastHot);
    for (size_t k = 0; k < batch.sources.size(); ++k) {
      batch.scales.push_back(1.0f / static_cast<float>(k % 7 + 1));
      if (k % 5 == 0) batch.sources[k] = kNoGradient;
    }
    AddPlainly(batch);
    ExpectSums<1>(batch, kLeastHot);
    if (dim % 4 == 0) ExpectSums<4>(batch, kLeastHot);
  }
}

TEST_P(SumKernelsTest, SumsThatAreNotFiniteRefuseTheUpdate) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 3e38f}) {
    for (const bool is_hot : {false, true}) {
      Batch batch = MakeBatch({16}, 1500, kLeastHot);
      for (uint32_t u = 0; u < batch.plan.unique.size(); ++u) {
        if ((batch.plan.counts[u] >= static_cast<int32_t>(kLeastHot)) != is_hot || batch.plan.counts[u] < 2) continue;
        const auto begin = static_cast<size_t>(batch.plan.starts[u]);
        for (const size_t k : {begin, begin + 1}) batch.gradients[static_cast<size_t>(batch.sources[k]) + 13] = bad;
        break;
      }
      uint32_t refused = 0;
      Sum<4>(batch, kLeastHot, 2, &refused);
      EXPECT_EQ(refused, 1u) << bad << is_hot;
      refused = 0;
      Sum<1>(batch, kLeastHot, 4, &refused);
      EXPECT_EQ(refused, 1u) << bad << is_hot;
    }
  }
}

INSTANTIATE_FOR_LAUNCHERS(SumKernelsTest);

}  // namespace
}  // namespace monolith::device
