// Group's reading calls.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "table/group.h"
#include "table/id_checks.h"
#include "table/row_copy.h"
#include "table/row_reader.h"

namespace monolith {
namespace {

constexpr int64_t kIdsPerTask = 4096;  // below this, waking another thread costs more than it saves
constexpr int64_t kBucketsPerTask = 32;
constexpr int64_t kIdsPerBlock = 1024;  // rows of a bag are gathered this many at a time before they are summed

// Runs body(begin, end) -> hits over [0, count) in tasks and sums the hits. The last tasks are smaller than `per_task`,
// so that all threads finish at nearly the same time: a thread that waits for the others falls asleep, and the next
// call has to wake it.
template <typename Body>
int64_t SumOverTasks(int64_t count, int64_t per_task, Body&& body) {
  if (count <= per_task) return count == 0 ? 0 : body(int64_t{0}, count);
  const int64_t threads = std::min<int64_t>(NumThreads(), (count + per_task - 1) / per_task);
  std::vector<int64_t> ends;
  for (int64_t end = 0; end < count; ends.push_back(end)) {
    end =
        std::min(count, end + std::clamp((count - end) / (2 * threads), std::max<int64_t>(per_task / 4, 1), per_task));
  }
  std::atomic<int64_t> hits{0};
  ParallelFor(static_cast<int>(ends.size()), static_cast<int>(threads), [&](int task) {
    hits.fetch_add(body(task == 0 ? 0 : ends[task - 1], ends[task]), std::memory_order_relaxed);
  });
  return hits.load(std::memory_order_relaxed);
}

struct Buckets {
  int64_t begin, end;
};

// Reads the rows of the distinct ids of some buckets, end to end in plan order; leaves their hints. Returns the number
// of rows found.
int64_t ReadBuckets(RowReader& reader, std::span<const std::unique_ptr<Table>> tables, Plan& plan, Buckets buckets,
                    float* out) {
  size_t cell = buckets.begin * tables.size();
  const int64_t first = plan.splits[cell], last = plan.splits[buckets.end * tables.size()];
  const std::span<const int64_t> ids(plan.unique.data() + first, static_cast<size_t>(last - first));
  uint32_t* hints = plan.hints.data() + first;
  if (tables.size() == 1) return reader.ReadTable(*tables[0], ids, plan.BucketsFrom(first), out, hints);
  return reader.ReadTables(ids, plan.BucketsFrom(first), hints, [&](int64_t i) {
    for (; first + i >= plan.splits[cell + 1]; ++cell)
      out += (plan.splits[cell + 1] - plan.splits[cell]) * tables[cell % tables.size()]->spec.dim();
    const Table& table = *tables[cell % tables.size()];
    return RowWish{&table, out + (first + i - plan.splits[cell]) * table.spec.dim()};
  });
}

// Pools bags of one table. The rows of neighbouring bags are read in blocks, even if the bags are short.
class BagPooler {
 public:
  BagPooler(BucketLock* locks, const Gate& gate, const Table& table, std::span<const int64_t> ids,
            std::span<const int64_t> row_splits, int64_t step)
      : table_(table), dim_(table.spec.dim()), ids_(ids), splits_(row_splits), reader_(locks, gate, step) {}

  void Sum(int64_t begin, int64_t end, float* out) {
    Buffer<float> rows(static_cast<size_t>(kIdsPerBlock) * dim_);
    std::fill_n(out + begin * dim_, (end - begin) * dim_, 0.0f);
    int64_t bag = begin;
    for (int64_t first = splits_[begin]; first < splits_[end]; first += kIdsPerBlock) {
      const int64_t last = std::min(first + kIdsPerBlock, splits_[end]);
      hits_ += reader_.ReadTable(table_, ids_.subspan(first, last - first), nullptr, rows.data(), nullptr);
      for (int64_t i = first; i < last; ++i) {
        while (i >= splits_[bag + 1]) ++bag;
        AddFloats(out + bag * dim_, rows.data() + (i - first) * dim_, static_cast<int>(dim_));
      }
    }
  }

  void ScaledSum(Pooling pooling, int64_t begin, int64_t end, float* out) {
    Sum(begin, end, out);
    for (int64_t bag = begin; bag < end; ++bag) {
      const int64_t count = splits_[bag + 1] - splits_[bag];
      if (count > 0) ScaleFloats(out + bag * dim_, PooledScale(pooling, count), static_cast<int>(dim_));
    }
  }

  void FirstN(int64_t begin, int64_t end, int64_t n, float* out) {
    for (int64_t bag = begin; bag < end; ++bag) {
      float* places = out + bag * n * dim_;
      const int64_t taken = std::min(n, splits_[bag + 1] - splits_[bag]);
      hits_ += reader_.ReadTable(table_, ids_.subspan(splits_[bag], taken), nullptr, places, nullptr);
      std::fill_n(places + taken * dim_, (n - taken) * dim_, 0.0f);
    }
  }

  int64_t hits() const { return hits_; }

 private:
  const Table& table_;
  const int64_t dim_;
  const std::span<const int64_t> ids_;
  const std::span<const int64_t> splits_;
  RowReader reader_;
  int64_t hits_ = 0;
};

}  // namespace

void Group::RequireIds(std::span<const int64_t> ids, std::span<const int64_t> table_splits) const {
  for (size_t t = 0; t < tables_.size(); ++t) {
    tables_[t]->RequireIds(ids.subspan(table_splits[t], table_splits[t + 1] - table_splits[t]));
  }
}

Plan Group::NewPlan(std::span<const int64_t> ids, std::span<const int64_t> table_splits, bool dedup,
                    std::span<const uint16_t> buckets) const {
  Plan plan = MakePlan(ids, table_splits, dedup, buckets);
  if (buckets.empty() && plan.num_tables == num_tables()) RequireIds(ids, plan.table_splits);
  return plan;
}

Plan Group::NewPlanOf(int table_number, std::span<const int64_t> ids, bool dedup,
                      std::span<const uint16_t> buckets) const {
  if (buckets.empty()) table(table_number).RequireIds(ids);
  const int64_t splits[] = {0, static_cast<int64_t>(ids.size())};
  Plan plan = MakePlan(ids, splits, dedup, buckets);
  plan.only_table = table_number;
  return plan;
}

PlanParts Group::Parts(const Plan& plan, std::span<const BucketRange> owners, bool with_counts) const {
  return PartsOf(plan, DimsOf(plan), owners, with_counts);
}

MergedPlans Group::Merge(std::span<const Plan* const> plans) const {
  return MergePlans(plans, plans.empty() ? std::vector<int>() : DimsOf(*plans[0]));
}

MergedPlans Group::Merge(std::span<const int64_t> words, std::span<const int64_t> num_words,
                         BucketRange buckets) const {
  if (buckets.begin > buckets.end || buckets.end > kNumBuckets) RefuseIds("buckets must be a range in [0, 1024]");
  std::vector<int> dims;
  for (const auto& table : tables_) dims.push_back(table->spec.dim());
  return MergeParts(words, num_words, std::move(dims), has_wide_, buckets);
}

std::vector<int> Group::DimsOf(const Plan& plan) const {
  std::vector<int> dims;
  for (const auto& table : TablesOf(plan)) dims.push_back(table->spec.dim());
  return dims;
}

int64_t Group::NumValues(const Plan& plan) const {
  const auto tables = TablesOf(plan);
  if (tables.size() == 1) return plan.num_unique() * tables[0]->spec.dim();
  int64_t values = 0;
  for (size_t cell = 0; cell + 1 < plan.splits.size(); ++cell) {
    values += (plan.splits[cell + 1] - plan.splits[cell]) * tables[cell % tables.size()]->spec.dim();
  }
  return values;
}

int64_t Group::Lookup(std::span<const int64_t> ids, std::span<const int64_t> table_splits, std::span<float> values,
                      int64_t step) const {
  CheckSize("table_splits", table_splits.size(), num_tables() + 1);
  CheckSplits("table_splits", table_splits, ids.size());
  std::vector<int64_t> first_value(tables_.size() + 1, 0);
  for (size_t t = 0; t < tables_.size(); ++t) {
    first_value[t + 1] = first_value[t] + (table_splits[t + 1] - table_splits[t]) * tables_[t]->spec.dim();
  }
  CheckSize("values", values.size(), first_value.back());
  RequireIds(ids, table_splits);
  Gate::Shared call(gate_);
  return SumOverTasks(static_cast<int64_t>(ids.size()), kIdsPerTask, [&](int64_t begin, int64_t end) {
    RowReader reader(locks_.get(), gate_, step);
    int64_t hits = 0;
    for (size_t t = 0; t < tables_.size(); ++t) {
      const Table& table = *tables_[t];
      const int dim = table.spec.dim();
      float* out = values.data() + first_value[t];
      const int64_t from = std::max(begin, table_splits[t]), to = std::min(end, table_splits[t + 1]);
      if (from >= to) continue;
      hits +=
          reader.ReadTable(table, ids.subspan(from, to - from), nullptr, out + (from - table_splits[t]) * dim, nullptr);
    }
    return hits;
  });
}

int64_t Group::Read(Plan& plan, std::span<float> values, int64_t step) const {
  const auto tables = TablesOf(plan);
  CheckSize("values", values.size(), NumValues(plan));
  Gate::Shared call(gate_);
  if (plan.hints.size() == 0) plan.hints = Buffer<uint32_t>(plan.num_unique());
  plan.hints_identity = rows_identity_;
  if (tables.size() == 1) {
    const Table& table = *tables[0];
    const int dim = table.spec.dim();
    return SumOverTasks(plan.num_unique(), kIdsPerTask, [&](int64_t begin, int64_t end) {
      const std::span<const int64_t> ids(plan.unique.data() + begin, static_cast<size_t>(end - begin));
      return RowReader(locks_.get(), gate_, step)
          .ReadTable(table, ids, plan.BucketsFrom(begin), values.data() + begin * dim, plan.hints.data() + begin);
    });
  }
  Buffer<int64_t> first_value(kNumBuckets + 1);  // of each bucket
  first_value[0] = 0;
  for (size_t cell = 0; cell + 1 < plan.splits.size(); ++cell) {
    const size_t bucket = cell / tables.size(), table = cell % tables.size();
    if (table == 0) first_value[bucket + 1] = first_value[bucket];
    first_value[bucket + 1] += (plan.splits[cell + 1] - plan.splits[cell]) * tables[table]->spec.dim();
  }
  return SumOverTasks(kNumBuckets, kBucketsPerTask, [&](int64_t begin, int64_t end) {
    RowReader reader(locks_.get(), gate_, step);
    return ReadBuckets(reader, tables, plan, {begin, end}, values.data() + first_value[begin]);
  });
}

// Reads a few buckets at a time, and copies their rows to each source while they are in the cache.
int64_t Group::ReadMerged(MergedPlans& merged, std::span<float> values, int64_t step) const {
  const auto tables = TablesOf(merged.plan);
  std::vector<int64_t> first_values = {0};  // of each source
  for (const MergedSource& source : merged.sources) first_values.push_back(first_values.back() + source.num_values());
  CheckSize("values", values.size(), first_values.back());
  Gate::Shared call(gate_);
  if (merged.plan.hints.size() == 0) merged.plan.hints = Buffer<uint32_t>(merged.plan.num_unique());
  merged.plan.hints_identity = rows_identity_;
  const int64_t per_task = merged.plan.num_unique() < kIdsPerTask ? kNumBuckets : kBucketsPerTask;
  return SumOverTasks(kNumBuckets, per_task, [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> rows;
    const auto size = static_cast<size_t>(merged.first_values[end] - merged.first_values[begin]);
    if (rows.size() < size) rows.resize(size);
    RowReader reader(locks_.get(), gate_, step);
    const int64_t hits = ReadBuckets(reader, tables, merged.plan, {begin, end}, rows.data());
    const BucketRange buckets{static_cast<uint32_t>(begin), static_cast<uint32_t>(end)};
    for (size_t r = 0; r < merged.sources.size(); ++r) {
      float* out = values.data() + first_values[r] + merged.sources[r].first_values[begin];
      GatherBuckets(merged, static_cast<int64_t>(r), buckets, rows.data(), out);
    }
    return hits;
  });
}

int64_t Group::ReadKeys(int table_number, std::span<const int64_t> keys, const uint16_t* buckets, float* values,
                        int64_t step) const {
  const Table& table = this->table(table_number);
  Gate::Shared call(gate_);
  return RowReader(locks_.get(), gate_, step).ReadTable(table, keys, buckets, values, nullptr);
}

int64_t Group::LookupPooled(int table_number, std::span<const int64_t> ids, std::span<const int64_t> given_splits,
                            Pooling pooling, int64_t first_n, std::span<float> values, int64_t step) const {
  const Table& table = this->table(table_number);
  // A copy, so that the checked values are used even if other threads of the caller write to the span meanwhile.
  const std::vector<int64_t> row_splits(given_splits.begin(), given_splits.end());
  CheckSplits("row_splits", row_splits, ids.size());
  if (pooling == Pooling::kFirstN && first_n < 1) throw Error(Code::kInvalidArgument, "first_n must be >= 1");
  const int64_t bags = static_cast<int64_t>(row_splits.size()) - 1;
  const int64_t width = table.spec.dim() * (pooling == Pooling::kFirstN ? first_n : 1);
  CheckSize("values", values.size(), bags * width);
  table.RequireIds(ids);
  Gate::Shared call(gate_);
  const int64_t ids_per_bag = std::max<int64_t>(1, static_cast<int64_t>(ids.size()) / std::max<int64_t>(bags, 1));
  return SumOverTasks(bags, std::max<int64_t>(1, kIdsPerTask / ids_per_bag), [&](int64_t begin, int64_t end) {
    BagPooler pooler(locks_.get(), gate_, table, ids, row_splits, step);
    if (pooling == Pooling::kSum) pooler.Sum(begin, end, values.data());
    if (IsScaled(pooling)) pooler.ScaledSum(pooling, begin, end, values.data());
    if (pooling == Pooling::kFirstN) pooler.FirstN(begin, end, first_n, values.data());
    return pooler.hits();
  });
}

int64_t Group::LookupRows(int table_number, std::span<const int64_t> ids, std::span<float> weights,
                          std::span<uint8_t> state, std::span<int64_t> times, std::span<uint8_t> found) const {
  const Table& table = this->table(table_number);
  const int dim = table.spec.dim(), state_bytes = table.spec.serving ? 0 : table.spec.state_bytes();
  const auto count = static_cast<int64_t>(ids.size());
  CheckSize("weights", weights.size(), count * dim);
  CheckSize("state", state.size(), count * state_bytes);
  CheckSize("times", times.size(), count);
  CheckSize("found", found.size(), count);
  table.RequireIds(ids);
  Gate::Shared call(gate_);
  return SumOverTasks(count, kIdsPerTask, [&](int64_t begin, int64_t end) {
    int64_t hits = 0;
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t hash = HashId(ids[i]);
      BucketGuard guard(locks_[BucketOfHash(hash)], Access::kReads);
      const uint32_t row = table.shards[BucketOfHash(hash)].Find(table.rows, hash, ids[i]);
      found[i] = row != kNoRow;
      hits += found[i];
      if (row == kNoRow) {
        times[i] = 0;
        ZeroFloats(weights.data() + i * dim, dim);
        std::fill_n(state.data() + i * state_bytes, state_bytes, uint8_t{0});
        continue;
      }
      const std::byte* record = table.rows.AtAllocated(row);
      times[i] = HeaderOf(record)->time;
      if (table.spec.serving) {
        table.spec.Decompress(PayloadOf(record), weights.data() + i * dim);
      } else {
        std::memcpy(weights.data() + i * dim, PayloadOf(record), sizeof(float) * dim);
        const auto* stored = reinterpret_cast<const uint8_t*>(PayloadOf(record)) + sizeof(float) * dim;
        std::copy_n(stored, state_bytes,
                    state.data() + i * state_bytes);  // memcpy must not get the null pointer of an empty state
      }
    }
    return hits;
  });
}

int64_t Group::Contains(int table_number, std::span<const int64_t> ids, std::span<uint8_t> found) const {
  const Table& table = this->table(table_number);
  CheckSize("found", found.size(), static_cast<int64_t>(ids.size()));
  table.RequireIds(ids);
  Gate::Shared call(gate_);
  return SumOverTasks(static_cast<int64_t>(ids.size()), kIdsPerTask, [&](int64_t begin, int64_t end) {
    int64_t hits = 0;
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t hash = HashId(ids[i]);
      BucketGuard guard(locks_[BucketOfHash(hash)], Access::kReads);
      found[i] = table.shards[BucketOfHash(hash)].Find(table.rows, hash, ids[i]) != kNoRow;
      hits += found[i];
    }
    return hits;
  });
}

}  // namespace monolith
