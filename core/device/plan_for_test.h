// A plan made by the kernels of device/kernels/plan.h, with the sorts and sums that their caller makes in between.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/process_key.h"
#include "device/launchers_for_test.h"

namespace monolith::device {

struct PlanForTest {
  uint32_t num_tables = 1;
  Shared<int64_t> unique, splits;
  Shared<uint16_t> buckets;
  Shared<int32_t> cells, inverse, counts, starts;
  Shared<int64_t> order;
  Shared<uint32_t> hot;

  DistinctIds ids() const { return {static_cast<uint32_t>(unique.size()), num_tables, unique.data(), cells.data()}; }
};

struct PlanOptions {
  bool dedup = true;
  uint32_t least_hot = 64;
  uint64_t process_key = kProcessKey;
};

inline PlanForTest MakeDevicePlan(Launcher& launcher, std::span<const int64_t> ids, std::span<const int64_t> splits,
                                  std::span<const uint16_t> buckets, const PlanOptions& options = {}) {
  const auto num_ids = static_cast<uint32_t>(ids.size());
  const auto num_tables = static_cast<uint32_t>(splits.size() - 1);
  const Shared<int64_t> keys(ids.begin(), ids.end()), table_splits(splits.begin(), splits.end());
  const Shared<uint16_t> given_buckets(buckets.begin(), buckets.end());
  const PlanInput input = {num_ids, num_tables, keys.data(), buckets.empty() ? nullptr : given_buckets.data(),
                           table_splits.data()};
  Shared<uint32_t> slots(size_t{1} << SlotBitsFor(num_ids), kNoPosition), firsts(num_ids);
  Shared<int32_t> is_first(num_ids);
  const auto launch = [&](uint64_t num_threads, const auto& kernel) { launcher.Launch(num_threads, kernel, Stream{}); };
  if (options.dedup) {
    launch(num_ids, InsertPositions{input, options.process_key, SlotBitsFor(num_ids), slots.data(), firsts.data()});
  }
  launch(num_ids, FindFirsts{num_ids, options.dedup ? slots.data() : nullptr, firsts.data(), is_first.data()});
  const Shared<int32_t> ranks = InclusiveSums(is_first);
  const uint32_t num_unique = ranks.empty() ? 0 : static_cast<uint32_t>(ranks.back());
  Shared<uint32_t> positions(num_unique), place_of(num_ids);
  Shared<int32_t> cells(num_unique);
  launch(num_ids, CompactFirsts{input, firsts.data(), ranks.data(), positions.data(), cells.data()});
  const Shared<int64_t> places = StableOrder(cells);

  PlanForTest plan;
  plan.num_tables = num_tables;
  for (const int64_t place : places) plan.cells.push_back(cells[static_cast<size_t>(place)]);
  plan.unique.resize(num_unique);
  plan.buckets.resize(num_unique);
  plan.counts.resize(num_unique);
  plan.inverse.resize(num_ids);
  plan.splits.resize(size_t{kNumBuckets} * num_tables + 1);
  launch(num_unique, OrderDistinct{input, num_unique, places.data(), positions.data(), plan.unique.data(),
                                   plan.buckets.data(), place_of.data()});
  launch(num_ids, NumberPositions{num_ids, firsts.data(), place_of.data(), plan.inverse.data(), plan.counts.data()});
  const auto num_cells = static_cast<uint32_t>(plan.splits.size() - 1);
  launch(num_cells + 1, FindSplits{num_unique, num_cells, plan.cells.data(), plan.splits.data()});
  plan.starts = {0};
  for (const int32_t sum : InclusiveSums(plan.counts)) plan.starts.push_back(sum);
  plan.order = StableOrder(plan.inverse);
  plan.hot.resize(num_ids / options.least_hot + 1);
  Shared<uint32_t> num_hot(1);
  launch(num_unique, ListHot{num_unique, options.least_hot, plan.counts.data(), plan.hot.data(), num_hot.data()});
  plan.hot.resize(num_hot[0]);
  return plan;
}

}  // namespace monolith::device
