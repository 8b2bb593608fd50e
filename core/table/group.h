// A group of tables: the unit of locking, of the cut, and of saving.
//
// An id belongs to one of 1,024 buckets by its hash; a bucket has one lock and holds that part of every table, of the
// admission filter and of the history. Calls take whole batches, are safe from any number of threads, and give the same
// result with any number of threads. Writers lock a bucket at a time; lookups lock nothing and repeat what a writer
// disturbed. An id is changed atomically, a batch is not.
//
// The group owns its tables, which never change after construction. Arrays belong to the caller and are not kept.
#pragma once

#include <cstdint>
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

struct Bucket {                                // guarded by the bucket's lock, all of it
  std::unique_ptr<FilterSlice> filter;         // null until something was counted
  std::unique_ptr<FilterSlice> filter_at_cut;  // as it was at the cut, iff filter_changed_since_cut
  bool filter_changed_since_cut = false;
  std::vector<Tombstone> tombstones;  // by epoch, ascending
};

// Times of a call: one for all ids, or one for each input position.
class Times {
 public:
  // Throws kInvalidArgument unless there are 1 or `num_ids` of them, all in [0, 2^32).
  Times(std::span<const int64_t> times, int64_t num_ids);
  bool single() const { return times_.size() == 1; }
  uint32_t Of(int64_t position) const { return static_cast<uint32_t>(single() ? times_[0] : times_[position]); }
  // REQUIRES: begin < end.
  int64_t Newest(int64_t begin, int64_t end) const;

 private:
  std::span<const int64_t> times_;
};

// The newest time of each distinct id's occurrences, or the one time of all.
std::vector<uint32_t> NewestTimes(const Plan& plan, std::span<const int64_t> times);

// One optimizer step.
struct Update {
  std::span<const float> gradients;
  bool per_unique = false;  // gradients in plan order, already summed; otherwise one row per input position
  std::span<const int32_t> gradient_rows;  // pooled lookups: input position i takes row gradient_rows[i] ...
  std::span<const float> gradient_scales;  // ... times gradient_scales[i]; empty = position i takes row i, times 1
  std::span<const float> learning_rates;   // every segment of every table, in table order
  int64_t step = 0;
  bool has_step = true;  // false: the caller knows none, and admission counts the offers of an id instead
  std::span<const int64_t> times;
  int64_t newest_time = 0;        // of the whole update, where other owners have parts of it; 0 = it is that of `times`
  float scale = 1.0f;             // of the summed gradient, for joint clipping
  bool known_finite = false;      // the caller saw that all gradients are finite; only asked of those per unique id
  std::span<const float> latest;  // weights as the worker saw them; empty = none. Per unique id iff the gradients are
};

struct Applied {
  int64_t updated = 0;  // ids that learned, new ones included
  int64_t inserted = 0;
  int64_t filtered = 0;    // ids that admission kept out
  int64_t skipped = 0;     // ids left alone because their gradient was not finite
  bool duplicate = false;  // the push was applied before; nothing was done
};

// What row blocks brought.
struct Loaded {
  int64_t rows = 0;
  int64_t tombstones = 0;
  int64_t filters = 0;
  int64_t ignored = 0;  // rows of blocks outside of the wanted buckets; a block without rows counts as one
};

struct TableStats {
  int64_t rows;
  uint64_t evicted;
  uint64_t row_bytes;  // of all records taken, free ones included, but for what the system has back
  uint64_t index_bytes;
  uint64_t other_bytes;  // shards, history, filters
  uint64_t tombstones;
  double index_load;       // entries / places
  double overhead_per_id;  // bytes beyond weights and state, divided by rows; 0 for an empty table
};

class Group {
 public:
  // Table names are distinct and ascending. `admission` may be null: every id is let in. Tests lower `max_row_epoch`,
  // which is at least 4, to see row epochs start over.
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
  // buckets throw kInvalidArgument for one that does not tell it: a wide key (table/slot_keys.h).
  Plan NewPlan(std::span<const int64_t> ids, std::span<const int64_t> table_splits, bool dedup,
               std::span<const uint16_t> buckets = {}) const;
  Plan NewPlanOf(int table, std::span<const int64_t> ids, bool dedup, std::span<const uint16_t> buckets = {}) const;

  // Plans between processes and of several batches (table/plan_parts.h, table/plan_merge.h), for these tables.
  PlanParts Parts(const Plan& plan, std::span<const BucketRange> owners, bool with_counts) const;
  Plan PlanOf(const DistinctIds& ids, BucketRange buckets) const { return PlanOfDistinct(ids, has_wide_, buckets); }
  MergedPlans Merge(std::span<const Plan* const> plans) const;
  MergedPlans Merge(std::span<const int64_t> words, std::span<const int64_t> num_words, BucketRange buckets) const;
  // Floats of a row of each table of a plan.
  std::vector<int> DimsOf(const Plan& plan) const;

  // Reading. A row that is not there reads as zeros; nothing is ever inserted. Each returns how many ids it found.
  int64_t Lookup(std::span<const int64_t> ids, std::span<const int64_t> table_splits, std::span<float> values,
                 int64_t step) const;
  int64_t Read(Plan& plan, std::span<float> values, int64_t step) const;  // unique ids in plan order; leaves hints
  // The rows of each source of merged plans, end to end; leaves hints in the plan of all.
  int64_t ReadMerged(MergedPlans& merged, std::span<float> values, int64_t step) const;
  // The rows of keys in the buckets that come with them, end to end; nobody checks that they belong together.
  int64_t ReadKeys(int table, std::span<const int64_t> keys, const uint16_t* buckets, float* values,
                   int64_t step) const;
  int64_t LookupPooled(int table, std::span<const int64_t> ids, std::span<const int64_t> row_splits, Pooling pooling,
                       int64_t first_n, std::span<float> values, int64_t step) const;
  int64_t LookupRows(int table, std::span<const int64_t> ids, std::span<float> weights, std::span<uint8_t> state,
                     std::span<int64_t> times, std::span<uint8_t> found) const;
  int64_t Contains(int table, std::span<const int64_t> ids, std::span<uint8_t> found) const;
  // Floats that the unique ids of a plan read.
  int64_t NumValues(const Plan& plan) const;

  // Writing.
  // An update that moves the newest time of all tables removes what has expired by then from some buckets of the tables
  // that ask for it: each bucket has its turn once in `evict_every_seconds`, at times that follow from its number
  // alone. So it is the same however buckets are divided among groups, and nothing has to be saved for it. With pushes,
  // one of each worker whose batches are in the update, all their stamps change together with the rows, and nothing is
  // done for those that were applied before; the rules are those of WorkerClocks::Turns. What throws records no stamp.
  Applied Apply(const Plan& plan, const Update& update, std::span<const Push> pushes = {});
  // What Apply() would say of the pushes alone: true for those that were applied before. Throws as it would, changes
  // nothing.
  bool IsDuplicate(std::span<const Push> pushes);
  // Overwrites or adds to weights, occurrence by occurrence in input order; returns how many were written. `step` is
  // for admission alone; kNoStep: there is none. `buckets` as in MakePlan().
  int64_t Assign(int table, std::span<const int64_t> ids, std::span<const float> values, std::span<const int64_t> times,
                 bool add, int64_t step, std::span<const uint16_t> buckets = {});
  // status: 1 existed, 0 inserted.
  void Reinitialize(int table, std::span<const int64_t> ids, int64_t time, std::span<int8_t> status);
  // Removes rows, and what admission has counted for the ids; ids that have no row count as removed, too, so that
  // followers of the history drop theirs. Returns how many rows there were.
  int64_t Erase(int table, std::span<const int64_t> ids, std::span<const uint16_t> buckets = {});
  // Counts rows as changed now, and ids that have none as removed now; weights, state, times and frequencies stay.
  // Returns how many rows there are.
  int64_t Touch(int table, std::span<const int64_t> ids, std::span<const uint16_t> buckets = {});
  // Removes what expired by `now`; -1 = each table's newest time. table -1 = all. Where much is free then, memory goes
  // back to the system, for which the call is alone for a moment.
  int64_t Evict(int table, int64_t now);
  void Clear() { ClearBuckets(0, kNumBuckets); }
  void ClearBuckets(uint32_t begin, uint32_t end);

  // Workers, and what was applied of them (table/worker_clock.h).
  WorkerClocks::Joined Join(int64_t worker);
  void Resume(std::span<const BatchStamp> stamps);
  std::vector<BatchStamp> Stamps() const;
  int64_t LastApplied(int64_t worker) const;
  int64_t Steps() const;
  int64_t StepsOfOthers(int64_t worker) const;
  void RequireCurrent(int64_t worker, int64_t incarnation) const;

  // History. Epochs are 64-bit and never return; 0 stands for "from the beginning". Changes made after Mark() returned
  // have a later epoch than it returned. Removals are kept while history is followed or a cut is open, and only then:
  // what was removed at another time cannot be asked for. Calls that take `since` throw kFailedPrecondition when that
  // history is no longer kept, and kInvalidArgument for an epoch that no mark has closed yet.
  uint64_t Mark();
  uint64_t LastMark() const;  // 0: none yet
  // The earliest epoch that can be asked for, besides 0; above LastMark() while nothing is kept.
  uint64_t HistoryFloor() const;
  // The epoch of the open cut, at which a reader may still begin; none if no cut is open.
  std::optional<uint64_t> OpenCutEpoch() const;
  // While history is followed, shards also list their changed rows, so that reading changes need not look at all rows.
  // Switched on: later epochs can be asked for, beside an open cut also what comes after it. Switched off: everything
  // is dropped, beside an open cut when that closes.
  void FollowHistory(bool followed);
  // Tombstones, then rows, changed after `since`, in their state at the time they are read. After a mark that is more
  // epochs back than rows can tell, all of them. Must not outlive the group; reading on throws once the history was
  // dropped.
  std::unique_ptr<BlockSource> Changes(uint64_t since, uint32_t begin, uint32_t end, bool state);
  // The same blocks, read by all threads: parts that make, end to end, what Changes() gives.
  std::vector<std::string> PackedChanges(uint64_t since, uint32_t begin, uint32_t end, bool state);
  std::vector<int64_t> Tombstones(int table, uint64_t since) const;
  // Nobody will ask for what comes before this mark. An open cut still has what it needs until it closes.
  void Forget(uint64_t before);
  // Freezes the present state for reading. Throws kFailedPrecondition while another cut is open.
  std::unique_ptr<Cut> OpenCut();

  // Rows, tombstones and filters of row blocks, upserted. Everything is checked before anything is changed.
  // source_schemas[t] is the schema text of the blocks' table t where it differs from ours (empty = the same); the
  // rules are in docs/formats/row_block.md. Blocks outside [begin, end) are counted, and left alone if their bytes are
  // whole. Throws kFailedPrecondition for a block of a table that is not ours.
  Loaded Load(std::span<const RowBlockView> blocks, uint32_t begin, uint32_t end,
              const std::vector<std::string>& source_schemas);
  // What Load() would refuse, without writing.
  void CheckBlocks(std::span<const RowBlockView> blocks, uint32_t begin, uint32_t end,
                   const std::vector<std::string>& source_schemas);
  // Of all updates, in Unix seconds, rows that are gone included; 0 before the first. Table -1: the newest of all, here
  // and at other owners as far as updates have told it.
  int64_t NewestTime(int table) const;
  // For a restore: rows do not tell the newest time when its row is gone. Table -1: of all.
  void RaiseNewestTime(int table, int64_t time);

  std::vector<int64_t> Ids(int table) const;
  // Rows of each slot, by its number; keys of a slot that the table does not know count for kNumSlots.
  std::map<uint32_t, int64_t> RowsBySlot(int table) const;
  TableStats Stats(int table) const;

 private:
  friend class Applier;
  friend class ChangeSource;
  friend class Cut;
  friend class CutSource;
  friend class Loader;
  friend class RowWriter;

  void RequireIds(std::span<const int64_t> ids, std::span<const int64_t> table_splits) const;
  // Those that a plan is for, in its order. Throws kInvalidArgument for a plan of other tables.
  std::span<const std::unique_ptr<Table>> TablesOf(const Plan& plan) const;
  Table& MutableTable(int number) { return const_cast<Table&>(table(number)); }
  // Counts an id that is not in the table; true iff it must stay out, for now. `step` may be kNoStep. Under the
  // bucket's lock.
  bool IsNotAdmitted(Bucket& bucket, const Table& table, int64_t id, uint64_t hash, uint32_t count, int64_t step);
  // What was counted for an id is dropped. Under the bucket's lock.
  void ForgetCount(Bucket& bucket, const Table& table, int64_t id, uint64_t hash);
  // Comes before every change of a bucket's filter: keeps the old one for an open cut. Under the bucket's lock.
  void BeforeFilterChange(Bucket& bucket);
  // A new row with its payload unset, or with its initial one. `home` as in TableShard::Insert(). Under the bucket's
  // lock.
  uint32_t InsertUnset(uint32_t bucket, Table& table, int64_t id, uint64_t hash, const IndexLine* home) {
    return table.shards[bucket].Insert(table.rows, bucket, hash, id, clock_, home);
  }
  uint32_t InsertRow(uint32_t bucket, Table& table, int64_t id, uint64_t hash, const IndexLine* home);
  void EraseRow(uint32_t bucket, Table& table, uint32_t row);
  // An id was removed, or counts as removed, now. Under the bucket's lock.
  void NoteRemoval(uint32_t bucket, const Table& table, int64_t id) {
    if (clock_.keeps_removals) buckets_[bucket].tombstones.push_back({id, table.number, clock_.epoch});
  }
  // Erases the rows for which dies(header) holds, in bucket order, in short holds of each lock.
  template <typename Dies>
  int64_t EraseWhere(Table& table, Dies&& dies);
  template <typename Dies>
  int64_t EraseWhere(uint32_t bucket, Table& table, Dies&& dies);
  int64_t EraseExpired(uint32_t bucket, Table& table, int64_t now);
  // Gives the buckets their turn that have one after `from` and up to `to`; returns how many rows were removed.
  int64_t EvictInTurn(int64_t from, int64_t to);
  void EnforceCap(Table& table);
  // Gives memory back to the system where a table has much that it does not use (table/memory_return.h).
  void ReturnMemory();
  uint64_t AbsoluteEpoch(uint32_t epoch) const { return epoch_base_ + epoch; }
  uint64_t Now() const { return AbsoluteEpoch(clock_.epoch); }
  uint64_t Floor() const { return clock_.keeps_removals ? history_floor_ : Now(); }
  // Throws what calls with `since` throw. `floor` is the earliest that can be asked for.
  void CheckSince(uint64_t since, uint64_t floor) const;
  // Rows and tombstones of this row epoch or a later one may have changed after `since`; no others have.
  uint32_t FirstRowEpochAfter(uint64_t since) const {
    return since == 0 || since < epoch_base_ ? 0 : static_cast<uint32_t>(since - epoch_base_) + 1;
  }
  // Closes the current epoch. As all that follow, REQUIRES that the caller is alone.
  void AdvanceEpoch();
  void MoveEpochBase();
  void KeepRemovals();
  void DropForgotten();
  void CloseCut();

  BlockArena index_blocks_;  // of all tables, many of which may be small
  std::vector<std::unique_ptr<Table>> tables_;
  std::unique_ptr<AdmissionFilter> admission_;
  int num_learning_rates_ = 0;
  std::vector<uint8_t> has_wide_;        // of each table: its keys may not tell their bucket
  std::unique_ptr<BucketLock[]> locks_;  // one per bucket
  std::unique_ptr<Bucket[]> buckets_;
  std::atomic<int64_t> newest_elsewhere_{0};  // of updates of which other owners have parts
  bool evicts_in_turn_ = false;               // some table does

  mutable Gate gate_;     // open to calls; alone for whatever changes the members from clock_ on
  WorkerClocks workers_;  // stamps change inside the gate, like rows
  HistoryClock clock_;
  uint64_t rows_identity_;  // no other group's, and new after every clear: row numbers mean nothing elsewhere
  const uint32_t max_row_epoch_;
  uint64_t epoch_base_ = 0;  // epochs of rows count from here; row epoch 0 is here or before
  bool is_followed_ = false;
  uint64_t history_floor_ = 0;  // iff removals are kept: of those up to here some are missing
  uint64_t cut_mark_ = 0;       // epoch of the open cut
  uint64_t cut_floor_ = 0;      // history_floor_ when the open cut was taken
};

}  // namespace monolith
