#include "table/distinct_ids.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/error.h"
#include "base/hash.h"
#include "table/id_checks.h"

namespace monolith {
namespace {

void RequireCounts(const DistinctIds& ids) {
  if (!ids.counts.empty()) CheckSize("counts", ids.counts.size(), static_cast<int64_t>(ids.keys.size()));
  if (std::any_of(ids.counts.begin(), ids.counts.end(), [](int32_t count) { return count < 1; })) RefuseCount();
}

}  // namespace

void RefuseBucket(int64_t key, uint32_t bucket) {
  RefuseIds("id " + std::to_string(key) + " came in bucket " + std::to_string(bucket) + ", it belongs to " +
            std::to_string(BucketOf(key)));
}

void RefuseCount() { RefuseIds("counts must be 1 or more"); }

Buffer<int64_t> SplitsOf(std::span<const CellCount> cells, size_t num_keys, size_t num_tables, BucketRange buckets) {
  CheckCount(num_keys);
  const size_t num_cells = kNumBuckets * num_tables, end = buckets.end * num_tables;
  Buffer<int64_t> splits(num_cells + 1);
  uint64_t total = 0;
  size_t next = 0, first = buckets.begin * num_tables;
  for (const CellCount given : cells) {
    if (given.cell < first || given.cell >= end || given.count == 0) {
      RefuseIds("cells must ascend inside [" + std::to_string(first) + ", " + std::to_string(end) +
                ") and have ids, got cell " + std::to_string(given.cell) + " with " + std::to_string(given.count));
    }
    std::fill(splits.data() + next, splits.data() + given.cell + 1, static_cast<int64_t>(total));
    first = next = size_t{given.cell} + 1;
    total += given.count;
  }
  CheckSize("keys", num_keys, static_cast<int64_t>(total));
  std::fill(splits.data() + next, splits.data() + num_cells + 1, static_cast<int64_t>(total));
  return splits;
}

std::vector<CellCount> CellsOf(const Plan& plan) {
  std::vector<CellCount> cells;
  for (size_t cell = 0; cell + 1 < plan.splits.size(); ++cell) {
    const int64_t count = plan.splits[cell + 1] - plan.splits[cell];
    if (count != 0) cells.push_back({static_cast<uint32_t>(cell), static_cast<uint32_t>(count)});
  }
  return cells;
}

void LinkDistinct(Plan& plan) {
  const auto num_tables = static_cast<size_t>(plan.num_tables), num_keys = plan.unique.size();
  plan.starts = Buffer<int32_t>(num_keys + 1);
  std::iota(plan.starts.data(), plan.starts.data() + num_keys + 1, 0);
  plan.order = Buffer<int32_t>(num_keys);
  plan.inverse = Buffer<int32_t>(num_keys);
  plan.table_splits.assign(num_tables + 1, 0);
  if (num_tables == 1) {
    plan.table_splits[1] = static_cast<int64_t>(num_keys);
    std::iota(plan.order.data(), plan.order.data() + num_keys, 0);
    std::iota(plan.inverse.data(), plan.inverse.data() + num_keys, 0);
    return;
  }
  const size_t num_cells = plan.splits.size() - 1;
  for (size_t cell = 0; cell < num_cells; ++cell)
    plan.table_splits[cell % num_tables + 1] += plan.splits[cell + 1] - plan.splits[cell];
  std::partial_sum(plan.table_splits.begin(), plan.table_splits.end(), plan.table_splits.begin());
  std::vector<int64_t> next_position(plan.table_splits.begin(), plan.table_splits.end() - 1);
  for (size_t cell = 0; cell < num_cells; ++cell) {
    int64_t& next = next_position[cell % num_tables];
    for (int64_t place = plan.splits[cell]; place < plan.splits[cell + 1]; ++place) {
      plan.order[place] = static_cast<int32_t>(next);
      plan.inverse[next++] = static_cast<int32_t>(place);
    }
  }
}

Plan PlanOfDistinct(const DistinctIds& ids, std::span<const uint8_t> has_wide, BucketRange buckets) {
  const size_t num_tables = has_wide.size(), num_keys = ids.keys.size();
  Plan plan;
  plan.num_tables = static_cast<int>(num_tables);
  plan.splits = SplitsOf(ids.cells, num_keys, num_tables, buckets);
  RequireCounts(ids);
  plan.unique = Buffer<int64_t>(num_keys);
  std::copy(ids.keys.begin(), ids.keys.end(), plan.unique.data());
  plan.counts = Buffer<int32_t>(ids.counts.size());
  std::copy(ids.counts.begin(), ids.counts.end(), plan.counts.data());
  if (std::any_of(has_wide.begin(), has_wide.end(), [](uint8_t wide) { return wide != 0; }))
    plan.buckets = Buffer<uint16_t>(num_keys);
  for (size_t cell = buckets.begin * num_tables; cell < buckets.end * num_tables; ++cell) {
    const auto bucket = static_cast<uint32_t>(cell / num_tables);
    const bool may_be_wide = has_wide[cell % num_tables] != 0;
    for (int64_t place = plan.splits[cell]; place < plan.splits[cell + 1]; ++place) {
      // Checks the copy: the caller's memory may change concurrently.
      if (!BelongsTo(bucket, plan.unique[place], may_be_wide)) RefuseBucket(plan.unique[place], bucket);
      if (plan.buckets.size() != 0) plan.buckets[place] = static_cast<uint16_t>(bucket);
    }
  }
  LinkDistinct(plan);
  return plan;
}

}  // namespace monolith
