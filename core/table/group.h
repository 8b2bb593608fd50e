// A group of tables: the unit of locking, of the cut, and of saving.
//
// An id belongs to one of 1,024 buckets by its hash; a bucket has one lock and holds its share of every table, of the
// admission filter and of the history. Calls take complete batches, are thread-safe, and return the same result with
// any number of threads. Writers lock one bucket at a time; lookups take no lock and repeat reads that a writer
// disturbed. An update is atomic per id, not per batch.
//
// The group owns its tables, which never change after construction. Arrays belong to the caller and are not kept.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "filter/admission_filter.h"
#include "format/block_source.h"
#include "format/row_block.h"
#include "memory/block_arena.h"
#include "table/bucket_lock.h"
#include "table/gate.h"
#include "table/plan.h"
#include "table/plan_merge.h"
#include "table/plan_parts.h"
#include "table/pooling.h"
#include "table/table.h"
#include "table/worker_clock.h"

namespace monolith {

class Cut;

struct Tombstone {
  int64_t key;
  uint32_t table;
  uint32_t epoch;
};

struct Bucket {                                // all members are guarded by the bucket's lock
  std::unique_ptr<FilterSlice> filter;         // null until an id was counted
  std::unique_ptr<FilterSlice> filter_at_cut;  // its state at the cut, iff filter_changed_since_cut
  bool filter_changed_since_cut = false;
  std::vector<Tombstone> tombstones;  // by epoch, ascending
};

// Times of a call: one for all ids, or one for each input position.
class Times {
 public:
  // Throws kInvalidArgument unless there are 1 or `num_ids` times, all in [0, 2^32).
  Times(std::span<const int64_t> times, int64_t num_ids);
  bool single() const { return times_.size() == 1; }
  uint32_t Of(int64_t position) const { return static_cast<uint32_t>(single() ? times_[0] : times_[position]); }
  // REQUIRES: begin < end.
  int64_t Newest(int64_t begin, int64_t end) const;

 private:
  std::span<const int64_t> times_;
};

// Returns the newest time of each distinct id's occurrences, or the single time of the call.
std::vector<uint32_t> NewestTimes(const Plan& plan, std::span<const int64_t> times);

// One optimizer step.
struct Update {
  std::span<const float> gradients;
  bool per_unique = false;  // gradients in plan order, already summed; otherwise one row per input position
  std::span<const int32_t> gradient_rows;  // pooled lookups: input position i takes row gradient_rows[i] ...
  std::span<const float> gradient_scales;  // ... times gradient_scales[i]; empty = position i takes row i, times 1
  std::span<const float> learning_rates;   // every segment of every table, in table order
  int64_t step = 0;
  bool has_step = true;  // false: the caller has no step, and admission counts the offers of an id instead
  std::span<const int64_t> times;
  int64_t newest_time = 0;        // of the complete update, if other owners hold parts of it; 0 = newest of `times`
  float scale = 1.0f;             // factor of the summed gradient, for joint clipping
  bool known_finite = false;      // the caller checked that all gradients are finite; only used if per_unique
  std::span<const float> latest;  // weights that the worker read; empty = none. Per unique id iff the gradients are
};

struct Applied {
  int64_t updated = 0;  // ids that were trained, new ones included
  int64_t inserted = 0;
  int64_t filtered = 0;    // ids that admission rejected
  int64_t skipped = 0;     // ids not updated because their gradient was not finite
  bool duplicate = false;  // the push was applied before; nothing was changed
};

// Counts of what row blocks contained.
struct Loaded {
  int64_t rows = 0;
  int64_t tombstones = 0;
  int64_t filters = 0;
  int64_t ignored = 0;  // rows of blocks outside of the wanted buckets; a block without rows counts as one
};

struct TableStats {
  int64_t rows;
  uint64_t evicted;
  uint64_t row_bytes;  // of all allocated records, free ones included, without memory returned to the system
  uint64_t index_bytes;
  uint64_t other_bytes;  // shards, history, filters
  uint64_t tombstones;
  double index_load;       // entries / capacity
  double overhead_per_id;  // bytes beyond weights and state, divided by rows; 0 for an empty table
};

class Group {
 public:
  // Table names are distinct and ascending. A null `admission` admits every id. Tests lower `max_row_epoch`, which is
  // at least 4, to make row epochs wrap around.
  Group(std::vector<TableSpec> specs, std::unique_ptr<AdmissionFilter> admission,
        uint32_t max_row_epoch = kMaxRowEpoch);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int num_tables() const { return static_cast<int>(tables_.size()); }
  // Throws kInvalidArgument for a number that is not a table's.
  const Table& table(int number) const;
  int num_learning_rates() const { return num_learning_rates_; }

  // As MakePlan(), for the tables of the group, or for one of them. Here and below, calls that take ids without their
  // buckets throw kInvalidArgument for an id that does not determine its bucket: a wide key (table/slot_keys.h).
  Plan NewPlan(std::span<const int64_t> ids, std::span<const int64_t> table_splits, bool dedup,
               std::span<const uint16_t> buckets = {}) const;
  Plan NewPlanOf(int table, std::span<const int64_t> ids, bool dedup, std::span<const uint16_t> buckets = {}) const;

  // Plans exchanged between processes and plans of several batches (table/plan_parts.h, table/plan_merge.h), for these
  // tables.
  PlanParts Parts(const Plan& plan, std::span<const BucketRange> owners, bool with_counts) const;
  Plan PlanOf(const DistinctIds& ids, BucketRange buckets) const { return PlanOfDistinct(ids, has_wide_, buckets); }
  MergedPlans Merge(std::span<const Plan* const> plans) const;
  MergedPlans Merge(std::span<const int64_t> words, std::span<const int64_t> num_words, BucketRange buckets) const;
  // Returns the floats of a row of each table of a plan.
  std::vector<int> DimsOf(const Plan& plan) const;

  // Reading. A missing row reads as zeros; reads never insert. Each call returns the number of ids it found.
  int64_t Lookup(std::span<const int64_t> ids, std::span<const int64_t> table_splits, std::span<float> values,
                 int64_t step) const;
  int64_t Read(Plan& plan, std::span<float> values, int64_t step) const;  // unique ids in plan order; leaves hints
  // Reads the rows of each source of merged plans, end to end; leaves hints in the merged plan.
  int64_t ReadMerged(MergedPlans& merged, std::span<float> values, int64_t step) const;
  // Reads the rows of keys in the given buckets, end to end; does not check that keys and buckets belong together.
  int64_t ReadKeys(int table, std::span<const int64_t> keys, const uint16_t* buckets, float* values,
                   int64_t step) const;
  int64_t LookupPooled(int table, std::span<const int64_t> ids, std::span<const int64_t> row_splits, Pooling pooling,
                       int64_t first_n, std::span<float> values, int64_t step) const;
  int64_t LookupRows(int table, std::span<const int64_t> ids, std::span<float> weights, std::span<uint8_t> state,
                     std::span<int64_t> times, std::span<uint8_t> found) const;
  int64_t Contains(int table, std::span<const int64_t> ids, std::span<uint8_t> found) const;
  // Number of floats that the unique ids of a plan read.
  int64_t NumValues(const Plan& plan) const;

  // Writing.
  // An update that advances the newest time of all tables evicts expired rows from some buckets of the tables with
  // `evict_every_seconds`: each bucket is visited once in that period, at times that depend on its number alone. So
  // eviction is the same however buckets are divided among groups, and it has no state to save. With pushes, one of
  // each worker whose batches are in the update, all their stamps change together with the rows; pushes that were
  // applied before change nothing; the rules are those of WorkerClocks::Turns. A call that throws records no stamp.
  Applied Apply(const Plan& plan, const Update& update, std::span<const Push> pushes = {});
  // Returns what Apply() would report for the pushes alone: true if they were applied before. Throws as Apply() would;
  // changes nothing.
  bool IsDuplicate(std::span<const Push> pushes);
  // Overwrites or adds to weights, occurrence by occurrence in input order; returns the number of occurrences written.
  // `step` is for admission alone; kNoStep: there is none. `buckets` as in MakePlan().
  int64_t Assign(int table, std::span<const int64_t> ids, std::span<const float> values, std::span<const int64_t> times,
                 bool add, int64_t step, std::span<const uint16_t> buckets = {});
  // status: 1 existed, 0 inserted.
  void Reinitialize(int table, std::span<const int64_t> ids, int64_t time, std::span<int8_t> status);
  // Removes rows, and the admission counts of the ids. Ids without a row are recorded as removed, too, so that
  // followers of the history drop theirs. Returns the number of rows that existed.
  int64_t Erase(int table, std::span<const int64_t> ids, std::span<const uint16_t> buckets = {});
  // Records rows as changed now, and ids without a row as removed now; weights, state, times and frequencies are
  // unchanged. Returns the number of rows that exist.
  int64_t Touch(int table, std::span<const int64_t> ids, std::span<const uint16_t> buckets = {});
  // Removes rows that expired by `now`; -1 = each table's newest time. table -1 = all. If much memory is free
  // afterwards, it is returned to the system, for which the call briefly takes exclusive access.
  int64_t Evict(int table, int64_t now);
  void Clear() { ClearBuckets(0, kNumBuckets); }
  void ClearBuckets(uint32_t begin, uint32_t end);

  // Workers, and the updates applied of each (table/worker_clock.h).
  WorkerClocks::Joined Join(int64_t worker);
  void Resume(std::span<const BatchStamp> stamps);
  std::vector<BatchStamp> Stamps() const;
  int64_t LastApplied(int64_t worker) const;
  int64_t Steps() const;
  int64_t StepsOfOthers(int64_t worker) const;
  void RequireCurrent(int64_t worker, int64_t incarnation) const;

  // History. Epochs are 64-bit and never reused; 0 stands for "from the beginning". Changes made after Mark() returned
  // have a later epoch than the one it returned. Removals are recorded only while history is followed or a cut is open;
  // earlier removals cannot be requested. Calls that take `since` throw kFailedPrecondition when that history is no
  // longer kept, and kInvalidArgument for an epoch that no mark has closed yet.
  uint64_t Mark();
  uint64_t LastMark() const;  // 0: none yet
  // The earliest epoch that can be requested, besides 0; above LastMark() while no history is kept.
  uint64_t HistoryFloor() const;
  // The epoch of the open cut, from which a reader may still start; none if no cut is open.
  std::optional<uint64_t> OpenCutEpoch() const;
  // While history is followed, shards also list their changed rows, so that reading changes need not scan all rows.
  // When switched on, later epochs can be requested; with an open cut, also the changes after the cut. When switched
  // off, the history is dropped; with an open cut, once the cut closes.
  void FollowHistory(bool followed);
  // Tombstones, then rows, changed after `since`, in their state at the time they are read; all rows if `since` is
  // older than row epochs can represent. Must not outlive the group; further reads throw once the history was dropped.
  std::unique_ptr<BlockSource> Changes(uint64_t since, uint32_t begin, uint32_t end, bool state);
  // Reads the same blocks with all threads. Returns parts that, end to end, equal the output of Changes().
  std::vector<std::string> PackedChanges(uint64_t since, uint32_t begin, uint32_t end, bool state);
  std::vector<int64_t> Tombstones(int table, uint64_t since) const;
  // Allows the history before this mark to be dropped. An open cut keeps what it needs until it closes.
  void TruncateHistory(uint64_t before);
  // Freezes the current state for reading. Throws kFailedPrecondition while another cut is open.
  std::unique_ptr<Cut> OpenCut();

  // Upserts the rows, tombstones and filters of row blocks. Everything is checked before anything is changed.
  // source_schemas[t] is the schema text of the blocks' table t where it differs from this group's (empty = the same);
  // the rules are in docs/formats/row_block.md. Blocks outside [begin, end) are counted, and skipped if their bytes are
  // intact. Throws kFailedPrecondition for a block of a table that this group does not have.
  Loaded Load(std::span<const RowBlockView> blocks, uint32_t begin, uint32_t end,
              const std::vector<std::string>& source_schemas);
  // Throws what Load() would throw, without writing.
  void CheckBlocks(std::span<const RowBlockView> blocks, uint32_t begin, uint32_t end,
                   const std::vector<std::string>& source_schemas);
  // The newest time of all updates, in Unix seconds, removed rows included; 0 before the first. Table -1: the newest of
  // all tables, here and at other owners as far as updates reported it.
  int64_t NewestTime(int table) const;
  // For a restore: the saved rows do not include the newest time if its row was removed. Table -1: of all.
  void RaiseNewestTime(int table, int64_t time);

  // For an owner that keeps the rows elsewhere and everything else here (device/device_group.h). Epochs of its rows are
  // those of this group. Rows that a call needs are put here before it, treated by it as rows of this group, and taken
  // away again; the owner makes one such call at a time, and calls that change rows from one thread at a time.
  struct RowEpochs {
    uint32_t now;  // of changes from now on
    uint64_t base;
    bool cut_is_open;
    uint32_t cut_epoch;
  };
  // Row caps are the owner's from now on.
  void KeepRowsElsewhere() { rows_are_elsewhere_ = true; }
  RowEpochs row_epochs() const;
  // Rows and tombstones of this row epoch or a later one may have changed after `since`; no others have.
  uint32_t FirstRowEpochAfter(uint64_t since) const {
    return since == 0 || since < epoch_base_ ? 0 : static_cast<uint32_t>(since - epoch_base_) + 1;
  }
  // The turns of the pushes of an update; the owner records them once its rows have changed.
  WorkerClocks::Turns TakeTurns(std::span<const Push> pushes) { return WorkerClocks::Turns(workers_, pushes); }
  struct NewId {
    int64_t key;
    uint32_t bucket;
    uint32_t table;
    uint32_t count;  // occurrences
  };
  bool has_admission() const { return admission_ != nullptr; }
  // Offers ids without a row to admission, in order; returns for each whether it is admitted.
  std::vector<uint8_t> Admit(std::span<const NewId> ids, int64_t step);
  // Buckets of a table, each at most once, in which an update that moves the newest time evicts expired rows.
  std::vector<uint32_t> BucketsToEvict(int table, int64_t from, int64_t to) const;
  void CountEvicted(int table, uint64_t rows);
  void PutRow(int table, uint32_t bucket, const RowHeader& header, const std::byte* payload);
  // Calls take(bucket, record) for each row of a table in buckets [begin, end), by bucket, and removes the rows without
  // a trace.
  void TakeRows(int table, uint32_t begin, uint32_t end,
                const std::function<void(uint32_t bucket, const std::byte* record)>& take);

  std::vector<int64_t> Ids(int table) const;
  // Rows of each slot, by slot number; keys of a slot that the table does not have count for kNumSlots.
  std::map<uint32_t, int64_t> RowsBySlot(int table) const;
  TableStats Stats(int table) const;

 private:
  friend class Applier;
  friend class ChangeSource;
  friend class CutSource;
  friend class GroupCut;
  friend class Loader;
  friend class RowWriter;

  void RequireIds(std::span<const int64_t> ids, std::span<const int64_t> table_splits) const;
  // The tables of a plan, in its order. Throws kInvalidArgument for a plan of other tables.
  std::span<const std::unique_ptr<Table>> TablesOf(const Plan& plan) const;
  Table& MutableTable(int number) { return const_cast<Table&>(table(number)); }
  // Counts an id that is not in the table; true iff it is not admitted yet. `step` may be kNoStep. Under the bucket's
  // lock.
  bool IsNotAdmitted(Bucket& bucket, const Table& table, int64_t id, uint64_t hash, uint32_t count, int64_t step);
  // Drops the admission count of an id. Under the bucket's lock.
  void ForgetCount(Bucket& bucket, const Table& table, int64_t id, uint64_t hash);
  // Must precede every change of a bucket's filter: keeps the old one for an open cut. Under the bucket's lock.
  void BeforeFilterChange(Bucket& bucket);
  // Inserts a new row with its payload unset, or with its initial one. `home` as in TableShard::Insert(). Under the
  // bucket's lock.
  uint32_t InsertUnset(uint32_t bucket, Table& table, int64_t id, uint64_t hash, const IndexLine* home) {
    return table.shards[bucket].Insert(table.rows, bucket, hash, id, clock_, home);
  }
  uint32_t InsertRow(uint32_t bucket, Table& table, int64_t id, uint64_t hash, const IndexLine* home);
  void EraseRow(uint32_t bucket, Table& table, uint32_t row);
  // Records the removal of an id, which need not have had a row. Under the bucket's lock.
  void NoteRemoval(uint32_t bucket, const Table& table, int64_t id) {
    if (clock_.keeps_removals) buckets_[bucket].tombstones.push_back({id, table.number, clock_.epoch});
  }
  // Erases the rows for which dies(header) holds, in bucket order, in short holds of each lock.
  template <typename Dies>
  int64_t EraseWhere(Table& table, Dies&& dies);
  template <typename Dies>
  int64_t EraseWhere(uint32_t bucket, Table& table, Dies&& dies);
  int64_t EraseExpired(uint32_t bucket, Table& table, int64_t now);
  // Evicts from the buckets that are due after `from` and up to `to`; returns the number of rows removed.
  int64_t EvictInTurn(int64_t from, int64_t to);
  void EnforceCap(Table& table);
  // Returns memory to the system if a table has much that it does not use (table/memory_return.h).
  void ReturnMemory();
  uint64_t AbsoluteEpoch(uint32_t epoch) const { return epoch_base_ + epoch; }
  uint64_t Now() const { return AbsoluteEpoch(clock_.epoch); }
  uint64_t Floor() const { return clock_.keeps_removals ? history_floor_ : Now(); }
  // Throws the errors of calls with `since`. `floor` is the earliest epoch that can be requested.
  void CheckSince(uint64_t since, uint64_t floor) const;
  // Closes the current epoch. As for all that follow, REQUIRES that the caller has exclusive access.
  void AdvanceEpoch();
  void MoveEpochBase();
  void KeepRemovals();
  void DropForgotten();
  void CloseCut();

  BlockArena index_blocks_;  // shared by all tables, many of which may be small
  std::vector<std::unique_ptr<Table>> tables_;
  std::unique_ptr<AdmissionFilter> admission_;
  int num_learning_rates_ = 0;
  std::vector<uint8_t> has_wide_;        // of each table: its keys may not determine their bucket
  std::unique_ptr<BucketLock[]> locks_;  // one per bucket
  std::unique_ptr<Bucket[]> buckets_;
  std::atomic<int64_t> newest_elsewhere_{0};  // of updates of which other owners hold parts
  bool evicts_in_turn_ = false;               // true if some table does
  bool rows_are_elsewhere_ = false;

  mutable Gate gate_;     // shared by calls; exclusive for changes of the members from clock_ on
  WorkerClocks workers_;  // stamps change inside the gate, like rows
  HistoryClock clock_;
  uint64_t rows_identity_;  // unique to the group and renewed by every clear: row numbers are only valid with it
  const uint32_t max_row_epoch_;
  uint64_t epoch_base_ = 0;  // epochs of rows count from here; row epoch 0 is this epoch or an earlier one
  bool is_followed_ = false;
  uint64_t history_floor_ = 0;  // while removals are kept: those up to here are incomplete
  uint64_t cut_mark_ = 0;       // epoch of the open cut
  uint64_t cut_floor_ = 0;      // history_floor_ when the cut was opened
};

}  // namespace monolith
