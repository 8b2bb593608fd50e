#include "table/distinct_ids.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/error.h"
#include "base/hash.h"
#include "table/id_checks.h"
#include "table/slot_keys.h"

namespace monolith {
namespace {

void RequireCells(const DistinctIds& ids, size_t num_tables, BucketRange buckets) {
  CheckCount(ids.keys.size());
  uint64_t total = 0;
  uint64_t next = static_cast<uint64_t>(buckets.begin) * num_tables;
  const uint64_t end = static_cast<uint64_t>(buckets.end) * num_tables;
  for (const CellCount& each : ids.cells) {
    if (each.cell < next || each.cell >= end || each.count == 0) {
      RefuseIds("cells must ascend inside [" + std::to_string(next) + ", " + std::to_string(end) +
                ") and have ids, got cell " + std::to_string(each.cell) + " with " + std::to_string(each.count));
    }
    next = uint64_t{each.cell} + 1;
    total += each.count;
  }
  CheckSize("keys", ids.keys.size(), static_cast<int64_t>(total));
  if (!ids.counts.empty()) CheckSize("counts", ids.counts.size(), static_cast<int64_t>(total));
  if (std::any_of(ids.counts.begin(), ids.counts.end(), [](int32_t count) { return count < 1; }))
    RefuseIds("counts must be 1 or more");
}

void RequireBucket(std::span<const int64_t> keys, bool may_be_wide, uint32_t bucket) {
  for (const int64_t key : keys) {
    if (BucketOf(key) == bucket || (may_be_wide && IsWideKey(key))) [[likely]]
      continue;
    RefuseIds("id " + std::to_string(key) + " came in bucket " + std::to_string(bucket) + ", it belongs to " +
              std::to_string(BucketOf(key)));
  }
}

}  // namespace

std::vector<CellCount> CellsOf(const Plan& plan) {
  std::vector<CellCount> cells;
  for (size_t cell = 0; cell + 1 < plan.splits.size(); ++cell) {
    const int64_t count = plan.splits[cell + 1] - plan.splits[cell];
    if (count != 0) cells.push_back({static_cast<uint32_t>(cell), static_cast<uint32_t>(count)});
  }
  return cells;
}

Plan PlanOfDistinct(const DistinctIds& ids, std::span<const uint8_t> has_wide, BucketRange buckets) {
  const size_t num_tables = has_wide.size();
  RequireCells(ids, num_tables, buckets);
  const size_t num_keys = ids.keys.size(), num_cells = kNumBuckets * num_tables;
  Plan plan;
  plan.num_tables = static_cast<int>(num_tables);
  plan.unique = Buffer<int64_t>(num_keys);
  std::copy(ids.keys.begin(), ids.keys.end(), plan.unique.data());
  plan.counts = Buffer<int32_t>(ids.counts.size());
  std::copy(ids.counts.begin(), ids.counts.end(), plan.counts.data());
  if (std::any_of(has_wide.begin(), has_wide.end(), [](uint8_t wide) { return wide != 0; }))
    plan.buckets = Buffer<uint16_t>(num_keys);
  plan.table_splits.assign(num_tables + 1, 0);
  for (const CellCount& each : ids.cells) plan.table_splits[each.cell % num_tables + 1] += each.count;
  std::partial_sum(plan.table_splits.begin(), plan.table_splits.end(), plan.table_splits.begin());

  plan.splits = Buffer<int64_t>(num_cells + 1);
  plan.starts = Buffer<int32_t>(num_keys + 1);
  std::iota(plan.starts.data(), plan.starts.data() + num_keys + 1, 0);
  plan.order = Buffer<int32_t>(num_keys);
  plan.inverse = Buffer<int32_t>(num_keys);
  std::vector<int64_t> next_position(plan.table_splits.begin(), plan.table_splits.end() - 1);
  int64_t place = 0;
  size_t next_cell = 0;
  for (const CellCount& each : ids.cells) {
    const size_t table = each.cell % num_tables;
    const auto bucket = static_cast<uint32_t>(each.cell / num_tables);
    std::fill(plan.splits.data() + next_cell, plan.splits.data() + each.cell + 1, place);
    next_cell = each.cell + 1;
    // Of the copy: the caller's memory may change under it.
    RequireBucket({plan.unique.data() + place, each.count}, has_wide[table] != 0, bucket);
    if (plan.buckets.size() != 0) std::fill_n(plan.buckets.data() + place, each.count, static_cast<uint16_t>(bucket));
    for (uint32_t i = 0; i < each.count; ++i, ++place) {
      plan.order[place] = static_cast<int32_t>(next_position[table]);
      plan.inverse[next_position[table]++] = static_cast<int32_t>(place);
    }
  }
  std::fill(plan.splits.data() + next_cell, plan.splits.data() + num_cells + 1, place);
  return plan;
}

}  // namespace monolith
