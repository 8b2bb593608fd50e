#include "device/slot_pooling.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/plan_for_test.h"

namespace monolith::device {
namespace {

constexpr int64_t kRagged = -1;

// A slot, and how many ids its examples have: one number for all, or up to `most` where they differ.
struct SlotForTest {
  int table;
  Pooling pooling;
  int64_t places = 0;
  int64_t per_example = kRagged;
  int64_t most = 3;
  bool has_gradient = true;
};

// A batch with random rows and gradients.
struct Batch {
  std::vector<int> dims;
  std::vector<PooledSlot> slots;
  std::vector<bool> has_gradient;
  int64_t num_examples = 0, width = 0;
  std::vector<int64_t> ids, ids_per_example, sizes, table_splits = {0};
  Shared<int64_t> row_splits;
  PlanForTest plan;
  Shared<int64_t> offsets;
  Shared<uint32_t> device_dims;
  Shared<float> values, whole;
  std::vector<Shared<float>> columns;  // the gradient of each slot, with a gap after each example

  PooledPlan view() const {
    const bool has_many = dims.size() > 1;
    return {static_cast<uint32_t>(ids.size()),
            plan.ids(),
            {device_dims[0], has_many ? device_dims.data() : nullptr, has_many ? offsets.data() : nullptr},
            plan.inverse.data(),
            plan.counts.data()};
  }
  PositionsOfIds positions() const { return {plan.starts.data(), plan.order.data()}; }
  PooledShape host_shape() const { return {num_examples, ids_per_example, {row_splits.data(), row_splits.size()}}; }
  SlotShape shape() const { return {num_examples, ids_per_example, sizes, row_splits.data()}; }
  std::vector<SlotGradient> gradients(int64_t gap) const {
    std::vector<SlotGradient> of_slots;
    for (size_t s = 0; s < slots.size(); ++s) {
      const int64_t own = slots[s].width(dims[static_cast<size_t>(slots[s].table)]);
      of_slots.push_back(has_gradient[s] ? SlotGradient{columns[s].data(), own, own + gap} : SlotGradient{});
    }
    return of_slots;
  }
};

float RandomFloat(std::mt19937_64& random) {
  if (random() % 16 == 0) return -0.0f;
  return static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31f * (random() % 5 == 0 ? 1e6f : 1.0f);
}

class SlotPoolingTest : public LauncherTest {
 protected:
  struct Options {
    int64_t num_examples = 37;
    int64_t num_ids = 50;  // that occur
    int64_t gap = 0;       // floats after each example of a slot's gradient
  };

  // Slots must be in the order of their tables.
  Batch MakeBatch(std::vector<int> dims, const std::vector<SlotForTest>& slots, const Options& options) {
    std::mt19937_64 random(slots.size());
    Batch batch;
    batch.dims = std::move(dims);
    batch.device_dims.assign(batch.dims.begin(), batch.dims.end());
    batch.num_examples = options.num_examples;
    for (size_t s = 0; s < slots.size(); ++s) AddSlot(slots[s], static_cast<int>(s), options, random, batch);
    while (batch.table_splits.size() <= batch.dims.size())
      batch.table_splits.push_back(static_cast<int64_t>(batch.ids.size()));
    batch.plan = MakeDevicePlan(launcher(), batch.ids, batch.table_splits, {});
    int64_t floats = 0;
    for (uint32_t u = 0; u < batch.plan.unique.size(); ++u) {
      batch.offsets.push_back(floats);
      floats += batch.dims[batch.plan.ids().TableAt(u)];
    }
    for (int64_t i = 0; i < floats; ++i) batch.values.push_back(RandomFloat(random));
    for (int64_t i = 0; i < batch.num_examples * batch.width; ++i) batch.whole.push_back(RandomFloat(random));
    return batch;
  }

  static void ExpectBits(const Shared<float>& got, const std::vector<float>& expected, const std::string& what) {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(expected[i])) << what << ", float " << i;
    }
  }

  // Owners decide in which way the core adds: both ways must give the same.
  void ExpectSame(const Batch& batch, int64_t gap = 0) {
    for (const bool is_apart : {false, true}) {
      std::vector<PooledSlot> slots = batch.slots;
      if (!is_apart) {
        for (PooledSlot& slot : slots) slot.owner = slot.table;
      }
      const PooledLayout layout(slots, batch.dims, batch.width);
      const SlotPooling pooling(layout, SharedLauncher(), batch.shape(), batch.view());
      ExpectSameOutputs(batch, layout, pooling);
      ExpectSameSums(batch, layout, pooling, batch.gradients(gap), "gradients of slots");
      const SlotGradient whole{batch.whole.data(), batch.width, batch.width};
      ExpectSameSums(batch, layout, pooling, layout.GradientsOf(whole), "gradient of all outputs");
    }
  }

  std::shared_ptr<Launcher> SharedLauncher() {
    return {&launcher(), [](Launcher*) {}};
  }

 private:
  static void AddSlot(const SlotForTest& given, int number, const Options& options, std::mt19937_64& random,
                      Batch& batch) {
    while (static_cast<int>(batch.table_splits.size()) <= given.table)
      batch.table_splits.push_back(static_cast<int64_t>(batch.ids.size()));
    const int64_t first = static_cast<int64_t>(batch.ids.size());
    if (given.per_example == kRagged) batch.row_splits.push_back(0);
    for (int64_t example = 0; example < options.num_examples; ++example) {
      const auto most = static_cast<uint64_t>(given.most) + 1;
      const int64_t count = given.per_example == kRagged ? static_cast<int64_t>(random() % most) : given.per_example;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t id = static_cast<int64_t>(random() % static_cast<uint64_t>(options.num_ids));
        batch.ids.push_back(random() % 3 == 0 ? 7 : id);  // one id is hot
        batch.ids.back() += 1000 * number;                // slots that are apart have no id in common
      }
      if (given.per_example == kRagged) batch.row_splits.push_back(static_cast<int64_t>(batch.ids.size()) - first);
    }
    batch.ids_per_example.push_back(given.per_example);
    batch.sizes.push_back(static_cast<int64_t>(batch.ids.size()) - first);
    batch.slots.push_back({given.table, batch.width, given.places, given.pooling, number});
    const int64_t width = batch.slots.back().width(batch.dims[static_cast<size_t>(given.table)]);
    batch.width += width;
    batch.has_gradient.push_back(given.has_gradient);
    batch.columns.emplace_back();
    for (int64_t i = 0; i < options.num_examples * (width + options.gap); ++i)
      batch.columns.back().push_back(RandomFloat(random));
  }

  static void ExpectSameOutputs(const Batch& batch, const PooledLayout& layout, const SlotPooling& pooling) {
    const float unset = std::numeric_limits<float>::quiet_NaN();
    const auto size = static_cast<size_t>(batch.num_examples * batch.width);
    std::vector<float> expected(size, unset);
    layout.Pool(batch.host_shape(), {batch.plan.splits.data(), batch.plan.splits.size()},
                {batch.plan.inverse.data(), batch.plan.inverse.size()}, {batch.values.data(), batch.values.size()},
                expected);
    Shared<float> outputs(size, unset);
    pooling.Pool(Stream{}, batch.values.data(), outputs.data());
    ExpectBits(outputs, expected, "outputs");
  }

  static void ExpectSameSums(const Batch& batch, const PooledLayout& layout, const SlotPooling& pooling,
                             const std::vector<SlotGradient>& gradients, const std::string& what) {
    Occurrences occurrences;
    occurrences.splits = {batch.plan.splits.data(), batch.plan.splits.size()};
    occurrences.inverse = {batch.plan.inverse.data(), batch.plan.inverse.size()};
    const float unset = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> expected(batch.values.size(), unset);
    layout.SumGradients(batch.host_shape(), occurrences, gradients, expected);
    Shared<std::byte> scratch(pooling.scratch_bytes(), std::byte{0xa5});
    Shared<float> sums(batch.values.size(), unset);
    pooling.SumGradients(Stream{}, batch.positions(), gradients, scratch.data(), sums.data());
    ExpectBits(sums, expected, what);
  }
};

TEST_P(SlotPoolingTest, EveryCombinerAtEveryDimHasTheBitsOfTheCore) {
  for (const int dim : {1, 3, 4, 5, 16, 130}) {
    ExpectSame(MakeBatch({dim},
                         {{0, Pooling::kSum},
                          {0, Pooling::kMean},
                          {0, Pooling::kSqrtN},
                          {0, Pooling::kFirstN, 2},
                          {0, Pooling::kFirstN, 5, 3},
                          {0, Pooling::kSum, 0, 1},
                          {0, Pooling::kMean, 0, 3}},
                         {}));
  }
}

TEST_P(SlotPoolingTest, LongRowsAndLongListsOfIds) {
  ExpectSame(MakeBatch({1024}, {{0, Pooling::kMean, 0, kRagged, 200}, {0, Pooling::kSqrtN, 0, 1}}, {9, 5}));
  ExpectSame(MakeBatch({4}, {{0, Pooling::kSqrtN, 0, kRagged, 900}, {0, Pooling::kFirstN, 700, kRagged, 900}}, {5, 3}));
}

TEST_P(SlotPoolingTest, TablesOfSeveralDimsOneOfThemWithoutASlot) {
  ExpectSame(MakeBatch({8, 3, 1, 16},
                       {{0, Pooling::kSum},
                        {0, Pooling::kFirstN, 3},
                        {2, Pooling::kMean, 0, 2},
                        {3, Pooling::kSqrtN},
                        {3, Pooling::kSum, 0, 1}},
                       {}));
  ExpectSame(MakeBatch({8, 4}, {{0, Pooling::kSum, 0, 1}, {1, Pooling::kMean}}, {}));
}

TEST_P(SlotPoolingTest, MoreSlotsThanOneLaunchTakes) {
  std::vector<SlotForTest> slots;
  for (int s = 0; s < 2 * static_cast<int>(kSlotsOfLaunch) + 3; ++s) {
    const int64_t per_example = s % 5 == 0 ? 0 : s % 3 == 0 ? 1 : kRagged;
    slots.push_back({0, s % 2 ? Pooling::kSum : Pooling::kMean, 0, per_example, 2, s % 7 != 0});
  }
  ExpectSame(MakeBatch({4}, slots, {.num_examples = 11}));
}

TEST_P(SlotPoolingTest, EmptyBatchesAndSlotsWithoutIds) {
  ExpectSame(MakeBatch({4}, {{0, Pooling::kSum}, {0, Pooling::kFirstN, 2}}, {.num_examples = 0}));
  ExpectSame(MakeBatch({4}, {{0, Pooling::kSum, 0, 0}, {0, Pooling::kMean, 0, kRagged, 0}}, {}));
  ExpectSame(MakeBatch({4, 3}, {{0, Pooling::kSum, 0, 0}, {1, Pooling::kMean, 0, 1}, {1, Pooling::kSum, 0, 0}}, {}));
}

TEST_P(SlotPoolingTest, GradientsWithGapsAndNone) {
  for (const int64_t gap : {1, 4}) {
    ExpectSame(MakeBatch({8},
                         {{0, Pooling::kSum, 0, kRagged, 3, false},
                          {0, Pooling::kMean},
                          {0, Pooling::kFirstN, 2, kRagged, 3, false},
                          {0, Pooling::kSqrtN, 0, 1}},
                         {.gap = gap}),
               gap);
  }
  ExpectSame(MakeBatch({8}, {{0, Pooling::kSum, 0, kRagged, 3, false}}, {}));
}

TEST_P(SlotPoolingTest, SizesThatDisagreeAreRefused) {
  const Batch batch = MakeBatch({4, 8}, {{0, Pooling::kSum, 0, 2}, {1, Pooling::kMean}}, {});
  const PooledLayout layout(batch.slots, batch.dims, batch.width);
  const auto refuses = [&](const std::function<void(SlotShape&, PooledPlan&)>& change) {
    SlotShape shape = batch.shape();
    PooledPlan plan = batch.view();
    change(shape, plan);
    EXPECT_THROW(SlotPooling(layout, SharedLauncher(), shape, plan), Error);
  };
  refuses([](SlotShape& shape, PooledPlan&) { ++shape.num_examples; });
  refuses([](SlotShape& shape, PooledPlan&) { shape.num_examples = -1; });
  refuses([](SlotShape& shape, PooledPlan&) { shape.ids_per_example = shape.ids_per_example.subspan(1); });
  refuses([](SlotShape& shape, PooledPlan&) { shape.sizes = shape.sizes.subspan(1); });
  refuses([](SlotShape& shape, PooledPlan&) { shape.row_splits = nullptr; });
  refuses([](SlotShape&, PooledPlan& plan) { ++plan.num_ids; });
  refuses([](SlotShape&, PooledPlan& plan) { plan.ids.num_tables = 1; });
  const SlotPooling pooling(layout, SharedLauncher(), batch.shape(), batch.view());
  EXPECT_THROW(pooling.SumGradients(Stream{}, batch.positions(), {}, nullptr, nullptr), Error);
}

INSTANTIATE_FOR_LAUNCHERS(SlotPoolingTest);

}  // namespace
}  // namespace monolith::device
