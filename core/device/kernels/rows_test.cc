#include "device/kernels/rows.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "device/table_for_test.h"

namespace monolith::device {
namespace {

class RowKernelsTest : public LauncherTest {
 protected:
  // Reads rows of two tables, some of which exist, with this many floats in a pack.
  template <int kWidth>
  void ExpectRows(uint32_t first_dim, uint32_t second_dim, uint32_t lane_bits) {
    TableForTest first(2 * first_dim, 2, 4), second(second_dim + 1, 3, 4);
    TablesForTest tables(launcher(), {&first, &second});
    const std::vector<int64_t> splits = {0, 30, 60};
    std::vector<int64_t> ids, others;
    for (int64_t i = 0; i < 60; ++i) ids.push_back(i * 7);
    for (int64_t i = 0; i < 60; ++i) others.push_back(i % 3 == 0 ? -1 - i : i * 7);
    const PlanForTest inserted = MakeDevicePlan(launcher(), ids, splits, {});
    const Shared<uint32_t> rows = tables.FindOrInsert(inserted);
    const Shared<uint32_t> dims = {first_dim, second_dim};
    const TableView views[] = {first.view(), second.view()};
    const auto value = [](int64_t id, uint32_t i) { return static_cast<float>(id) + static_cast<float>(i) / 2048; };
    for (uint32_t u = 0; u < rows.size(); ++u) {
      const uint32_t table = inserted.ids().TableAt(u);
      for (uint32_t i = 0; i < views[table].stride; ++i) {
        views[table].PayloadAt(rows[u])[i] = i < dims[table] ? value(inserted.unique[u], i) : -1.0f;
      }
    }
    const PlanForTest plan = MakeDevicePlan(launcher(), others, splits, {});
    const Shared<uint32_t> found = tables.Find(plan);
    Shared<int64_t> offsets;
    Shared<float> expected;
    for (uint32_t u = 0; u < found.size(); ++u) {
      offsets.push_back(static_cast<int64_t>(expected.size()));
      for (uint32_t i = 0; i < dims[plan.ids().TableAt(u)]; ++i) {
        expected.push_back(found[u] == kNoRow ? 0.0f : value(plan.unique[u], i));
      }
    }
    Shared<float> values(expected.size(), -2.0f);
    Launch(uint64_t{plan.ids().count} << lane_bits,
           GatherRows<kWidth>{
               plan.ids(), tables.tables(), {0, dims.data(), offsets.data()}, lane_bits, found.data(), values.data()});
    EXPECT_EQ(values, expected) << first_dim << " " << second_dim;
  }
};

TEST_P(RowKernelsTest, GatherRowsOfEveryDim) {
  ExpectRows<1>(1, 3, LaneBitsFor(1));
  ExpectRows<1>(5, 1024, LaneBitsFor(5));
  ExpectRows<1>(16, 4, LaneBitsFor(16));
  ExpectRows<4>(16, 4, LaneBitsFor(4));
  ExpectRows<4>(1024, 8, LaneBitsFor(256));
}

TEST_P(RowKernelsTest, OneTableNeedsNeitherDimsNorOffsets) {
  TableForTest table(3, 2, 4);
  TablesForTest tables(launcher(), {&table});
  const PlanForTest plan = MakeDevicePlan(launcher(), std::vector<int64_t>{4, 5, 6}, std::vector<int64_t>{0, 3}, {});
  const Shared<uint32_t> rows = tables.FindOrInsert(plan);
  for (const uint32_t row : rows) {
    for (uint32_t i = 0; i < 3; ++i) table.view().PayloadAt(row)[i] = static_cast<float>(10 * row + i);
  }
  Shared<float> values(9);
  Launch(3, GatherRows<1>{plan.ids(), tables.tables(), {3, nullptr, nullptr}, 0, rows.data(), values.data()});
  EXPECT_EQ(values, (Shared<float>{0, 1, 2, 10, 11, 12, 20, 21, 22}));
}

TEST(LaneBitsTest, GiveEveryPackALaneUpToAWarp) {
  const uint32_t expected[][2] = {{0, 0}, {1, 0}, {2, 1}, {3, 2}, {4, 2}, {5, 3}, {32, 5}, {33, 5}, {1024, 5}};
  for (const auto& [num_packs, bits] : expected) EXPECT_EQ(LaneBitsFor(num_packs), bits) << num_packs;
}

INSTANTIATE_FOR_LAUNCHERS(RowKernelsTest);

}  // namespace
}  // namespace monolith::device
