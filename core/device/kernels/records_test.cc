#include "device/kernels/records.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "device/rows_for_test.h"

namespace monolith::device {
namespace {

constexpr uint32_t kPayloadFloats[] = {1, 2, 3, 4, 5, 6, 32, 33, 34, 128, 2048};

class RecordKernelsTest : public LauncherTest {
 protected:
  template <typename Kernel>
  void Run(const Kernel& kernel) {
    Launch(kernel.NumThreads(), kernel);
  }
};

TEST_P(RecordKernelsTest, RowsArePackedInTheOrderOfTheirList) {
  for (const uint32_t payload_floats : kPayloadFloats) {
    RowsForTest rows(launcher(), {.count = 100, .payload_floats = payload_floats, .erase_every = 9});
    const std::vector<uint32_t> live = rows.LiveRows();
    Shared<uint32_t> list(live.rbegin(), live.rend());
    const auto count = static_cast<uint32_t>(list.size());
    RecordsForTest records(payload_floats, count);
    Run(PackRecords{rows.tables.tables(), RowsOfTable(0, list.data(), count), records.view(), records.lane_bits()});
    for (uint32_t i = 0; i < count; ++i) ASSERT_EQ(records.At(i), records.Of(rows.table.view(), list[i]));
    EXPECT_TRUE(records.IsUntouchedFrom(count));
  }
}

TEST_P(RecordKernelsTest, ListsEndWhereTheirCountersSay) {
  RowsForTest rows(launcher(), {.count = 50});
  Shared<uint32_t> list(50);
  for (uint32_t i = 0; i < 50; ++i) list[i] = i;
  for (const auto& [used, expected] : {std::pair{0u, 0u}, {30u, 30u}, {40u, 40u}, {41u, 40u}}) {
    const Shared<uint32_t> counter = {used};
    RecordsForTest records(3, 50);
    const RowList rows_of_list = RowsOfTable(0, list.data(), 40, counter.data());
    Run(PackRecords{rows.tables.tables(), rows_of_list, records.view(), records.lane_bits()});
    for (uint32_t i = 0; i < expected; ++i) ASSERT_EQ(records.At(i), records.Of(rows.table.view(), i));
    EXPECT_TRUE(records.IsUntouchedFrom(expected));
  }
}

TEST_P(RecordKernelsTest, StoredRecordsAreRowsAgain) {
  for (const uint32_t payload_floats : kPayloadFloats) {
    const RowsOptions options = {.count = 100, .payload_floats = payload_floats, .keys = KeysForTest::kWide};
    RowsForTest from(launcher(), options), to(launcher(), options);
    const PlanForTest plan = from.PlanOf(MakeIds(100, options.keys));
    const Shared<uint32_t> rows = from.tables.Find(plan);
    Shared<uint32_t> targets = to.tables.Find(plan);
    RecordsForTest records(payload_floats, 100), after(payload_floats, 1);
    Run(PackRecords{from.tables.tables(), RowsOfIds(plan.ids(), rows.data()), records.view(), records.lane_bits()});
    for (uint32_t u = 0; u < 100; ++u) to.Fill(targets[u]);
    targets[17] = kNoRow;
    Run(StoreRecords{to.tables.tables(), RowsOfIds(plan.ids(), targets.data()), records.view(), nullptr, nullptr,
                     records.lane_bits()});
    for (uint32_t u = 0; u < 100; ++u) {
      if (u == 17) continue;
      ASSERT_EQ(after.Of(to.table.view(), targets[u]), records.At(u)) << u;
      for (uint32_t i = payload_floats; i < to.table.view().stride; ++i) {
        ASSERT_EQ(to.table.view().PayloadAt(targets[u])[i], 0.0f) << "the rest of a payload";
      }
    }
    EXPECT_NE(after.Of(to.table.view(), to.tables.Find(plan)[17]), records.At(17)) << "has no row in the list";
  }
}

TEST_P(RecordKernelsTest, TheKeyOfARowIsNotOverwritten) {
  RowsForTest rows(launcher(), {.count = 1});
  RecordsForTest records(3, 1);
  *records.view().HeaderAt(0) = {12345, 6, MakeMeta(7, 8)};
  const Shared<uint32_t> list = {0};
  const int64_t key = rows.HeaderAt(0).key;
  Run(StoreRecords{rows.tables.tables(), RowsOfTable(0, list.data(), 1), records.view(), nullptr, nullptr,
                   records.lane_bits()});
  EXPECT_EQ(rows.HeaderAt(0).key, key);
  EXPECT_EQ(rows.HeaderAt(0).time, 6u);
  EXPECT_EQ(rows.HeaderAt(0).meta, MakeMeta(7, 8));
}

TEST_P(RecordKernelsTest, OfSeveralRecordsOfAnIdTheLastOneIsStored) {
  RowsForTest rows(launcher(), {.count = 200, .payload_floats = 2});
  IdsForTest given;
  for (int64_t i = 0; i < 300; ++i) {
    given.ids.push_back(i * i % 70);
    given.buckets.push_back(static_cast<uint16_t>(BucketOf(given.ids.back())));
  }
  const PlanForTest plan = rows.PlanOf(given);
  const Shared<uint32_t> found = rows.tables.FindOrInsert(plan);
  RecordsForTest records(2, 300);
  for (uint32_t i = 0; i < 300; ++i) {
    *records.view().HeaderAt(i) = {given.ids[i], i, MakeMeta(i % 128, 3)};
    records.view().PayloadAt(i)[0] = records.view().PayloadAt(i)[1] = static_cast<float>(i);
  }
  Run(StoreRecords{rows.tables.tables(), RowsOfIds(plan.ids(), found.data()), records.view(), plan.order.data(),
                   plan.starts.data(), records.lane_bits()});
  for (uint32_t u = 0; u < found.size(); ++u) {
    const auto last = std::find(given.ids.rbegin(), given.ids.rend(), plan.unique[u]);
    const auto place = static_cast<uint32_t>(given.ids.rend() - last - 1);
    EXPECT_EQ(rows.HeaderAt(found[u]).time, place);
    EXPECT_EQ(rows.table.view().PayloadAt(found[u])[1], static_cast<float>(place));
  }
}

TEST_P(RecordKernelsTest, EmptyListsAreNothingToDo) {
  RowsForTest rows(launcher(), {.count = 0});
  RecordsForTest records(3, 0);
  Run(PackRecords{rows.tables.tables(), RowsOfTable(0, nullptr, 0), records.view(), 0});
  Run(StoreRecords{rows.tables.tables(), RowsOfTable(0, nullptr, 0), records.view(), nullptr, nullptr, 0});
  EXPECT_TRUE(records.IsUntouchedFrom(0));
}

INSTANTIATE_FOR_LAUNCHERS(RecordKernelsTest);

}  // namespace
}  // namespace monolith::device
