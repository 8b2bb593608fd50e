#include "table/group.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "base/error.h"

namespace monolith {
namespace {

uint64_t NewRowsIdentity() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

Times::Times(std::span<const int64_t> times, int64_t num_ids) : times_(times) {
  if (times.size() != 1 && static_cast<int64_t>(times.size()) != num_ids) {
    throw Error(Code::kInvalidArgument, "expected one time or one for each of " + std::to_string(num_ids) +
                                            " ids, got " + std::to_string(times.size()));
  }
  for (const int64_t time : times) {
    if (time < 0 || time >= (int64_t{1} << 32)) {
      throw Error(Code::kInvalidArgument, "time must be Unix seconds in [0, 2^32), got " + std::to_string(time));
    }
  }
}

int64_t Times::Newest(int64_t begin, int64_t end) const {
  if (single()) return times_[0];
  return *std::max_element(times_.begin() + begin, times_.begin() + end);
}

std::vector<uint32_t> NewestTimes(const Plan& plan, std::span<const int64_t> times) {
  const Times checked(times, plan.num_ids());
  if (checked.single()) return {checked.Of(0)};
  std::vector<uint32_t> newest(static_cast<size_t>(plan.num_unique()));
  for (int64_t place = 0; place < plan.num_unique(); ++place) {
    for (int32_t k = plan.starts[place]; k < plan.starts[place + 1]; ++k)
      newest[place] = std::max(newest[place], checked.Of(plan.order[k]));
  }
  return newest;
}

Group::Group(std::vector<TableSpec> specs, std::unique_ptr<AdmissionFilter> admission, uint32_t max_row_epoch)
    : admission_(std::move(admission)),
      locks_(std::make_unique<BucketLock[]>(kNumBuckets)),
      buckets_(std::make_unique<Bucket[]>(kNumBuckets)),
      rows_identity_(NewRowsIdentity()),
      max_row_epoch_(max_row_epoch) {
  if (specs.empty()) throw Error(Code::kInvalidArgument, "a group needs at least one table");
  if (max_row_epoch < 4 || max_row_epoch > kMaxRowEpoch) {
    throw Error(Code::kInvalidArgument, "max_row_epoch must be in [4, " + std::to_string(kMaxRowEpoch) + "], got " +
                                            std::to_string(max_row_epoch));
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    const TableSpec& spec = specs[i];
    if (spec.segments().empty()) throw Error(Code::kInvalidArgument, "table '" + spec.name + "' has no segments");
    if (i > 0 && specs[i - 1].name >= spec.name) {
      throw Error(Code::kInvalidArgument, "table names must be distinct and ascending, got '" + spec.name +
                                              "' after '" + specs[i - 1].name + "'");
    }
    if (spec.evict_every_seconds < 0) {
      throw Error(Code::kInvalidArgument, "table '" + spec.name + "': evict_every_seconds must be >= 0, got " +
                                              std::to_string(spec.evict_every_seconds));
    }
    num_learning_rates_ += static_cast<int>(spec.segments().size());
    if (admission_ != nullptr) admission_->CheckThreshold(spec.min_counts.Largest(), "table '" + spec.name + "'");
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    has_wide_.push_back(!specs[i].wide_slots().empty());
    evicts_in_turn_ |= specs[i].evict_every_seconds != 0;
    tables_.push_back(std::make_unique<Table>(std::move(specs[i]), static_cast<uint32_t>(i), index_blocks_));
  }
}

Group::~Group() = default;

const Table& Group::table(int number) const {
  if (number < 0 || number >= num_tables()) {
    throw Error(Code::kInvalidArgument,
                "table number must be in [0, " + std::to_string(num_tables()) + "), got " + std::to_string(number));
  }
  return *tables_[number];
}

std::span<const std::unique_ptr<Table>> Group::TablesOf(const Plan& plan) const {
  if (plan.only_table != -1) {
    table(plan.only_table);
    return {&tables_[plan.only_table], 1};
  }
  if (plan.num_tables != num_tables()) {
    throw Error(Code::kInvalidArgument, "the plan was made for another number of tables: expected " +
                                            std::to_string(num_tables()) + ", got " + std::to_string(plan.num_tables));
  }
  return tables_;
}

bool Group::IsNotAdmitted(Bucket& bucket, const Table& table, int64_t id, uint64_t hash, uint32_t count, int64_t step) {
  if (admission_ == nullptr) return false;
  const uint32_t threshold = table.spec.MinCountOf(id);
  if (threshold == 0) return false;
  BeforeFilterChange(bucket);
  if (bucket.filter == nullptr) bucket.filter = admission_->MakeSlice();
  return bucket.filter->ShouldDrop({table.spec.CountedHash(hash, id), count, threshold, table.spec.RowSeed(id), step});
}

void Group::ForgetCount(Bucket& bucket, const Table& table, int64_t id, uint64_t hash) {
  if (bucket.filter == nullptr) return;
  BeforeFilterChange(bucket);
  bucket.filter->Forget(table.spec.CountedHash(hash, id));
}

void Group::BeforeFilterChange(Bucket& bucket) {
  if (!clock_.cut_is_open || bucket.filter_changed_since_cut) return;
  bucket.filter_changed_since_cut = true;
  bucket.filter_at_cut = bucket.filter == nullptr ? nullptr : bucket.filter->Clone();
}

uint32_t Group::InsertRow(uint32_t bucket, Table& table, int64_t id, uint64_t hash, const IndexLine* home) {
  const uint32_t row = InsertUnset(bucket, table, id, hash, home);
  table.spec.InitPayload(id, PayloadOf(table.rows.AtAllocated(row)));
  return row;
}

void Group::EraseRow(uint32_t bucket, Table& table, uint32_t row) {
  NoteRemoval(bucket, table, HeaderOf(table.rows.AtAllocated(row))->key);
  table.shards[bucket].Erase(table.rows, row, clock_);
}

void Group::ClearBuckets(uint32_t begin, uint32_t end) {
  if (begin > end || end > kNumBuckets) throw Error(Code::kInvalidArgument, "buckets must be a range in [0, 1024]");
  Gate::Alone alone(gate_);
  if (clock_.cut_is_open) {
    throw Error(Code::kFailedPrecondition, "cannot clear while a cut is open; release it first");
  }
  const bool all = begin == 0 && end == kNumBuckets;
  for (uint32_t number = begin; number < end; ++number) {
    for (auto& table : tables_) {
      TableShard& shard = table->shards[number];
      all ? shard.Forget() : shard.EraseAll(table->rows, clock_);
    }
    buckets_[number].filter.reset();
    std::vector<Tombstone>().swap(buckets_[number].tombstones);
  }
  if (all) {
    rows_identity_ = NewRowsIdentity();
    newest_elsewhere_.store(0, std::memory_order_relaxed);
  }
  for (auto& table : tables_) {
    if (!all) break;
    table->rows.Clear();
    table->index.Clear();
    table->newest_time.store(0, std::memory_order_relaxed);
  }
  // The removed rows left no tombstones, so changes across this point cannot be requested.
  history_floor_ = Now();
  AdvanceEpoch();
}

WorkerClocks::Joined Group::Join(int64_t worker) {
  Gate::Shared call(gate_);
  return workers_.Join(worker);
}

std::vector<BatchStamp> Group::Stamps() const {
  Gate::Shared call(gate_);
  return workers_.Stamps();
}

int64_t Group::LastApplied(int64_t worker) const {
  Gate::Shared call(gate_);
  return workers_.LastApplied(worker);
}

int64_t Group::Steps() const {
  Gate::Shared call(gate_);
  return workers_.Steps();
}

int64_t Group::StepsOfOthers(int64_t worker) const {
  Gate::Shared call(gate_);
  return workers_.StepsOfOthers(worker);
}

void Group::RequireCurrent(int64_t worker, int64_t incarnation) const {
  Gate::Shared call(gate_);
  workers_.Require(worker, incarnation);
}

int64_t Group::NewestTime(int table_number) const {
  if (table_number != -1) return table(table_number).newest_time.load(std::memory_order_relaxed);
  int64_t newest = newest_elsewhere_.load(std::memory_order_relaxed);
  for (const auto& each : tables_) newest = std::max(newest, each->newest_time.load(std::memory_order_relaxed));
  return newest;
}

void Group::RaiseNewestTime(int table_number, int64_t time) {
  RaiseTo(table_number == -1 ? newest_elsewhere_ : MutableTable(table_number).newest_time, time);
}

void Group::Resume(std::span<const BatchStamp> stamps) {
  Gate::Alone alone(gate_);
  workers_.Resume(stamps);
}

std::vector<int64_t> Group::Ids(int table_number) const {
  const Table& table = this->table(table_number);
  Gate::Shared call(gate_);
  std::vector<int64_t> ids;
  ids.reserve(table.Size());
  for (uint32_t number = 0; number < kNumBuckets; ++number) {
    BucketGuard guard(locks_[number], Access::kReads);
    table.shards[number].VisitAll(table.rows,
                                  [&](uint32_t row) { ids.push_back(HeaderOf(table.rows.AtAllocated(row))->key); });
  }
  return ids;
}

std::map<uint32_t, int64_t> Group::RowsBySlot(int table_number) const {
  const Table& table = this->table(table_number);
  Gate::Shared call(gate_);
  std::vector<int64_t> counts(kNumSlots + 1);  // the last one counts unknown slots
  for (uint32_t number = 0; number < kNumBuckets; ++number) {
    BucketGuard guard(locks_[number], Access::kReads);
    table.shards[number].VisitAll(
        table.rows, [&](uint32_t row) { ++counts[table.spec.SlotOfKey(HeaderOf(table.rows.AtAllocated(row))->key)]; });
  }
  std::map<uint32_t, int64_t> found;
  for (size_t slot = 0; slot < counts.size(); ++slot) {
    if (counts[slot] != 0) found[static_cast<uint32_t>(slot)] = counts[slot];
  }
  return found;
}

TableStats Group::Stats(int table_number) const {
  const Table& table = this->table(table_number);
  Gate::Shared call(gate_);
  TableStats stats{};
  stats.rows = table.Size();
  stats.evicted = table.evicted.load(std::memory_order_relaxed);
  stats.row_bytes = table.rows.resident_bytes();
  stats.index_bytes = table.index.MemoryBytes();
  uint64_t places = 0;
  for (uint32_t number = 0; number < kNumBuckets; ++number) {
    const Bucket& bucket = buckets_[number];
    BucketGuard guard(locks_[number], Access::kReads);
    const TableShard& shard = table.shards[number];
    places += uint64_t{shard.index.shape().num_lines} * kLineEntries;
    const auto tombstones = static_cast<uint64_t>(
        std::count_if(bucket.tombstones.begin(), bucket.tombstones.end(),
                      [&](const Tombstone& tombstone) { return tombstone.table == table.number; }));
    stats.tombstones += tombstones;
    stats.other_bytes += shard.MemoryBytes() + tombstones * sizeof(Tombstone);
    if (table_number != 0) continue;  // memory shared by tables counts for the first
    stats.other_bytes += (bucket.tombstones.capacity() - bucket.tombstones.size()) * sizeof(Tombstone);
    if (bucket.filter != nullptr) stats.other_bytes += bucket.filter->MemoryBytes();
  }
  stats.index_load = places == 0 ? 0.0 : static_cast<double>(stats.rows) / static_cast<double>(places);
  if (stats.rows > 0) {
    const double all = static_cast<double>(stats.row_bytes + stats.index_bytes + stats.other_bytes);
    stats.overhead_per_id = all / static_cast<double>(stats.rows) - table.spec.payload_bytes();
  }
  return stats;
}

}  // namespace monolith
