// Group's writing calls other than Apply: assign, reinitialize, erase, touch, evict.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "memory/buffer.h"
#include "table/group.h"
#include "table/id_checks.h"
#include "table/memory_return.h"
#include "table/planned_walk.h"
#include "table/row_copy.h"

namespace monolith {
namespace {

struct Count {
  int64_t value = 0;
  Count& operator+=(const Count& other) {
    value += other.value;
    return *this;
  }
};

// Returns the rows of `dim` floats, one for each input position, in the order of a plan. In a separate pass: rows are
// scattered in the input, and many loads are in flight here. Each visit of the walk has cache misses of its own, and in
// addition to those the same rows took four times as long, prefetched or not.
Buffer<float> InPlanOrder(const Plan& plan, std::span<const float> rows, int dim) {
  Buffer<float> ordered(plan.num_ids() * dim);
  GatherRows({plan.order.data(), plan.order.size()}, dim, rows.data(), ordered.data());
  return ordered;
}

}  // namespace

// Writes occurrence by occurrence, in input order inside each bucket; equal ids share a bucket, so the last of them is
// written last.
class RowWriter {
 public:
  // `each_once`: equal ids are visited once.
  RowWriter(Group& group, int table, std::span<const int64_t> ids, bool each_once = false,
            std::span<const uint16_t> buckets = {})
      : group_(group), table_(group.MutableTable(table)), plan_(group.NewPlanOf(table, ids, each_once, buckets)) {}

  int64_t Assign(std::span<const float> values, const Times& times, bool add, int64_t step) {
    const Buffer<float> ordered = InPlanOrder(plan_, values, table_.spec.dim());
    AssignVisitor visitor{group_, plan_, ordered.data(), times, add, step};
    return Walk(visitor);
  }
  int64_t Reinitialize(uint32_t time, std::span<int8_t> status) {
    ReinitializeVisitor visitor{group_, plan_, time, status};
    return Walk(visitor);
  }
  int64_t Erase() {
    EraseVisitor visitor{group_};
    return Walk(visitor);
  }
  int64_t Touch() {
    TouchVisitor visitor{group_};
    return Walk(visitor);
  }

 private:
  struct AssignVisitor {
    // `the_values` in plan order.
    AssignVisitor(Group& the_group, const Plan& the_plan, const float* the_values, const Times& the_times, bool adds,
                  int64_t the_step)
        : group(the_group), plan(the_plan), values(the_values), times(the_times), add(adds), step(the_step) {}

    void Visit(const PlannedId& id, Count& written) const {
      const TableSpec& spec = id.table.spec;
      const float* given = values + id.place * spec.dim();
      uint32_t row = id.row;
      if (!add && spec.LeavesOut(given)) {
        if (row != kNoRow) group.EraseRow(id.bucket_number, id.table, row);
        return;
      }
      if (row == kNoRow) {
        if (group.IsNotAdmitted(id.bucket, id.table, id.id, id.hash, 1, step)) return;
        row = group.InsertRow(id.bucket_number, id.table, id.id, id.hash, id.home);
      } else {
        id.shard().BeforeChange(id.table.rows, row, group.clock_);
      }
      std::byte* record = id.table.rows.AtAllocated(row);
      Write(spec, PayloadOf(record), given);
      HeaderOf(record)->time = times.Of(plan.order[id.place]);
      ++written.value;
    }

    void Write(const TableSpec& spec, std::byte* payload, const float* given) const {
      if (!spec.serving) {
        auto* weights = reinterpret_cast<float*>(payload);
        add ? AddFloats(weights, given, spec.dim()) : CopyFloats(weights, given, spec.dim());
        return;
      }
      if (!add) return spec.Compress(given, payload);
      thread_local std::vector<float> sum;
      sum.resize(spec.dim());
      spec.Decompress(payload, sum.data());
      AddFloats(sum.data(), given, spec.dim());
      spec.Compress(sum.data(), payload);
    }

    Group& group;
    const Plan& plan;
    const float* const values;
    const Times& times;
    const bool add;
    const int64_t step;
  };

  struct ReinitializeVisitor {
    ReinitializeVisitor(Group& the_group, const Plan& the_plan, uint32_t the_time, std::span<int8_t> the_status)
        : group(the_group), plan(the_plan), time(the_time), status(the_status) {}

    void Visit(const PlannedId& id, Count& written) const {
      status[plan.order[id.place]] = id.row != kNoRow;
      uint32_t row = id.row;
      if (row == kNoRow) {
        row = group.InsertRow(id.bucket_number, id.table, id.id, id.hash, id.home);
      } else {
        id.shard().BeforeChange(id.table.rows, row, group.clock_);
        if (!id.table.spec.serving) id.table.spec.InitPayload(id.id, PayloadOf(id.table.rows.AtAllocated(row)));
      }
      HeaderOf(id.table.rows.AtAllocated(row))->time = time;
      ++written.value;
    }

    Group& group;
    const Plan& plan;
    const uint32_t time;
    const std::span<int8_t> status;
  };

  struct EraseVisitor {
    explicit EraseVisitor(Group& the_group) : group(the_group) {}
    void Visit(const PlannedId& id, Count& erased) const {
      group.ForgetCount(id.bucket, id.table, id.id, id.hash);
      if (id.row == kNoRow) return group.NoteRemoval(id.bucket_number, id.table, id.id);
      group.EraseRow(id.bucket_number, id.table, id.row);
      ++erased.value;
    }
    Group& group;
  };

  struct TouchVisitor {
    explicit TouchVisitor(Group& the_group) : group(the_group) {}
    void Visit(const PlannedId& id, Count& there) const {
      if (id.row == kNoRow) return group.NoteRemoval(id.bucket_number, id.table, id.id);
      id.shard().BeforeChange(id.table.rows, id.row, group.clock_);
      ++there.value;
    }
    Group& group;
  };

  template <typename AnyVisitor>
  int64_t Walk(AnyVisitor& visitor) {
    Table* const tables[] = {&table_};
    PlannedWalk<Count> walk(group_.locks_.get(), group_.buckets_.get(), tables, plan_, false,
                            group_.clock_.logs_changes);
    return walk.Run(visitor).value;
  }

  Group& group_;
  Table& table_;
  const Plan plan_;
};

int64_t Group::Assign(int table_number, std::span<const int64_t> ids, std::span<const float> values,
                      std::span<const int64_t> times, bool add, int64_t step, std::span<const uint16_t> buckets) {
  Table& table = MutableTable(table_number);
  CheckSize("values", values.size(), static_cast<int64_t>(ids.size()) * table.spec.dim());
  const Times checked_times(times, static_cast<int64_t>(ids.size()));
  if (ids.empty()) return 0;
  Gate::Writing call(gate_);
  const int64_t written = RowWriter(*this, table_number, ids, false, buckets).Assign(values, checked_times, add, step);
  table.RaiseNewestTime(checked_times.Newest(0, static_cast<int64_t>(ids.size())));
  EnforceCap(table);
  return written;
}

void Group::Reinitialize(int table_number, std::span<const int64_t> ids, int64_t time, std::span<int8_t> status) {
  Table& table = MutableTable(table_number);
  CheckSize("status", status.size(), static_cast<int64_t>(ids.size()));
  const Times checked_time(std::span<const int64_t>(&time, 1), 1);
  if (ids.empty()) return;
  Gate::Writing call(gate_);
  RowWriter(*this, table_number, ids).Reinitialize(checked_time.Of(0), status);
  table.RaiseNewestTime(time);
  EnforceCap(table);
}

int64_t Group::Erase(int table_number, std::span<const int64_t> ids, std::span<const uint16_t> buckets) {
  table(table_number);
  Gate::Writing call(gate_);
  return RowWriter(*this, table_number, ids, true, buckets).Erase();
}

int64_t Group::Touch(int table_number, std::span<const int64_t> ids, std::span<const uint16_t> buckets) {
  table(table_number);
  Gate::Writing call(gate_);
  return RowWriter(*this, table_number, ids, true, buckets).Touch();
}

template <typename Dies>
int64_t Group::EraseWhere(Table& table, Dies&& dies) {
  int64_t erased = 0;
  for (uint32_t number = 0; number < kNumBuckets; ++number) erased += EraseWhere(number, table, dies);
  return erased;
}

template <typename Dies>
int64_t Group::EraseWhere(uint32_t bucket, Table& table, Dies&& dies) {
  constexpr uint32_t kRecordsPerHold = 512;
  int64_t erased = 0;
  std::vector<uint32_t> dying;
  for (uint32_t from = 0; from != kNoRow;) {
    BucketGuard guard(locks_[bucket], Access::kChanges);
    dying.clear();
    from = table.shards[bucket].VisitFrom(table.rows, from, kRecordsPerHold, [&](uint32_t row) {
      if (dies(*HeaderOf(table.rows.AtAllocated(row)))) dying.push_back(row);
    });
    for (const uint32_t row : dying) EraseRow(bucket, table, row);
    erased += static_cast<int64_t>(dying.size());
  }
  table.evicted.fetch_add(erased, std::memory_order_relaxed);
  return erased;
}

int64_t Group::EraseExpired(uint32_t bucket, Table& table, int64_t now) {
  return EraseWhere(bucket, table, [&](const RowHeader& row) { return table.spec.HasExpired(row.key, row.time, now); });
}

std::vector<uint32_t> Group::BucketsToEvict(int table_number, int64_t from, int64_t to) const {
  const int64_t every = table(table_number).spec.evict_every_seconds;
  std::vector<uint32_t> buckets;
  if (every == 0 || from == 0) return buckets;  // 0: the first update, no row is older
  const int64_t last = to * kNumBuckets / every;
  const int64_t first = std::max(from * kNumBuckets / every, last - kNumBuckets) + 1;
  for (int64_t turn = first; turn <= last; ++turn) buckets.push_back(static_cast<uint32_t>(turn % kNumBuckets));
  return buckets;
}

int64_t Group::EvictInTurn(int64_t from, int64_t to) {
  int64_t evicted = 0;
  for (auto& table : tables_) {
    for (const uint32_t bucket : BucketsToEvict(static_cast<int>(table->number), from, to)) {
      evicted += EraseExpired(bucket, *table, to);
    }
  }
  return evicted;
}

int64_t Group::Evict(int table_number, int64_t now) {
  if (table_number != -1) table(table_number);
  if (now < -1 || now >= (int64_t{1} << 32)) {
    throw Error(Code::kInvalidArgument, "now must be Unix seconds in [0, 2^32), got " + std::to_string(now));
  }
  int64_t evicted = 0;
  {
    Gate::Writing call(gate_);
    for (auto& table : tables_) {
      if (table_number != -1 && static_cast<int>(table->number) != table_number) continue;
      const int64_t reference = now == -1 ? table->newest_time.load(std::memory_order_relaxed) : now;
      for (uint32_t number = 0; number < kNumBuckets; ++number) evicted += EraseExpired(number, *table, reference);
    }
  }
  if (evicted != 0) ReturnMemory();
  return evicted;
}

void Group::ReturnMemory() {
  const auto wastes = [](const auto& table) { return WastesMemory(*table); };
  {
    Gate::Shared call(gate_);
    if (std::none_of(tables_.begin(), tables_.end(), wastes)) return;
  }
  Gate::Alone alone(gate_);
  for (auto& table : tables_) {
    if (wastes(table)) ReturnUnusedMemory(*table);
  }
}

namespace {

constexpr int64_t kSlackFrom = 1 << 16;  // from this cap on, evict a few more rows at a time than required

uint32_t ScoreOf(const TableSpec& spec, const RowHeader& row) {
  return spec.cap_eviction == CapEviction::kLeastRecentlyUsed ? RecencyScoreOf(row) : FrequencyScoreOf(row);
}

// The score below which fewer than `rank` of the visited scores lie, and the number of rows with exactly that score
// that make up the rest.
struct Threshold {
  uint32_t score;
  int64_t ties;
};

template <typename ForEach>
Threshold SelectThreshold(int64_t rank, ForEach&& for_each) {
  std::vector<int64_t> counts(1 << 16);
  for_each([&](uint32_t score) { ++counts[score >> 16]; });
  uint32_t high = 0;
  while (high < 0xffff && rank > counts[high]) rank -= counts[high++];
  std::fill(counts.begin(), counts.end(), 0);
  for_each([&](uint32_t score) {
    if (score >> 16 == high) ++counts[score & 0xffff];
  });
  uint32_t low = 0;
  while (low < 0xffff && rank > counts[low]) rank -= counts[low++];
  return {high << 16 | low, rank};
}

}  // namespace

void Group::EnforceCap(Table& table) {
  const auto cap = static_cast<int64_t>(table.spec.max_rows);
  if (cap == 0 || rows_are_elsewhere_) return;
  MutexLock one_at_a_time(table.cap_mutex);
  const int64_t size = table.Size();
  if (size <= cap) return;
  const int64_t surplus = size - cap + (cap >= kSlackFrom ? cap / 64 : 0);
  Threshold threshold = SelectThreshold(surplus, [&](auto&& visit) {
    for (uint32_t number = 0; number < kNumBuckets; ++number) {
      BucketGuard guard(locks_[number], Access::kReads);
      table.shards[number].VisitAll(
          table.rows, [&](uint32_t row) { visit(ScoreOf(table.spec, *HeaderOf(table.rows.AtAllocated(row)))); });
    }
  });
  EraseWhere(table, [&](const RowHeader& row) {
    const uint32_t score = ScoreOf(table.spec, row);
    return score < threshold.score || (score == threshold.score && threshold.ties-- > 0);
  });
}

}  // namespace monolith
