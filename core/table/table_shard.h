// The rows of one table in one bucket: its index, its records, and the record of their changes.
//
// Owned by a Group. Every member needs the bucket's lock, except that lookups without it may read the shape of the
// index and follow row numbers through the pool (table/bucket_lock.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/prefetch.h"
#include "memory/record_pool.h"
#include "table/change_log.h"
#include "table/epoch_shift.h"
#include "table/record_runs.h"
#include "table/row.h"
#include "table/row_index.h"

namespace monolith {

// The position of the group's history; constant during a call, because cut and mark wait for the calls in flight.
struct HistoryClock {
  uint32_t epoch = 1;  // of current changes
  bool cut_is_open = false;
  uint32_t cut_epoch = 0;       // the open cut holds every change of this epoch or before
  bool keeps_removals = false;  // removals of rows may be requested
  bool logs_changes = false;    // changes of rows will be requested
};

class TableShard {
 public:
  RowIndex index;

  uint32_t size() const { return index.size(); }
  static bool Holds(const RecordPool& rows, uint32_t row, int64_t key) {
    const std::byte* record = rows.At(row);
    return record != nullptr && IsRowOf(record, key);
  }
  uint32_t Find(const RecordPool& rows, uint64_t hash, int64_t key) const {
    return RowIndex::Find(index.shape(), hash, [&](uint32_t row) { return Holds(rows, row, key); });
  }

  // Inserts a live row for a key that has none, its payload unset. `bucket` spreads the growth of the shards over time.
  // `home` is the home line of the key in the current index if the caller has searched it, or null.
  uint32_t Insert(RecordPool& rows, uint32_t bucket, uint64_t hash, int64_t key, const HistoryClock& clock,
                  const IndexLine* home = nullptr);
  // Makes room in the index for `entries` in total.
  void Reserve(RecordPool& rows, uint32_t bucket, uint32_t entries);
  void Erase(RecordPool& rows, uint32_t row, const HistoryClock& clock);
  // Removes all free records from the list (table/row.h), so that their memory may be returned to the system.
  void ListNoFreeRecords();
  // Frees every record for reuse by this shard.
  void EraseAll(RecordPool& rows, const HistoryClock& clock);
  // Drops every record. Called together with RecordPool::Clear() and IndexMemory::Clear().
  void Forget();

  // Must precede every change of a live row: keeps its old image for an open cut and records the change.
  void BeforeChange(const RecordPool& rows, uint32_t row, const HistoryClock& clock) {
    BeforeChange(rows.AtAllocated(row), row, rows, clock);
  }
  // `record` is that of the row.
  void BeforeChange(std::byte* record, uint32_t row, const RecordPool& rows, const HistoryClock& clock) {
    RowHeader& header = *HeaderOf(record);
    const uint32_t epoch = EpochOf(header);
    if (epoch == clock.epoch) return;
    if (clock.cut_is_open && epoch <= clock.cut_epoch && row >= cut_cursor_) KeepImage(rows, row);
    if (clock.logs_changes) LogChange(row, clock.epoch);
    header.meta = MakeMeta(FrequencyOf(header), clock.epoch);
  }

  // Calls visit(row number, record) for the live rows numbered from `from` on and examines at most `limit` records;
  // returns the row number to resume at, kNoRow at the end. Row numbers ascend.
  template <typename Visit>
  uint32_t VisitRecords(const RecordPool& rows, uint32_t from, uint32_t limit, Visit&& visit) const;
  // As VisitRecords(), for a visit(row number).
  template <typename Visit>
  uint32_t VisitFrom(const RecordPool& rows, uint32_t from, uint32_t limit, Visit&& visit) const {
    return VisitRecords(rows, from, limit, [&visit](uint32_t row, const std::byte*) { visit(row); });
  }
  template <typename Visit>
  void VisitAll(const RecordPool& rows, Visit&& visit) const {
    VisitFrom(rows, 0, kNoRow, visit);
  }

  // The cut. OpenCut() starts it at row number 0; rows below the cursor have been written out and need no image any
  // more.
  void OpenCut() { cut_cursor_ = 0; }
  void AdvanceCut(uint32_t cursor) { cut_cursor_ = cursor; }
  // Ends the cut here and returns the old images: complete records end to end.
  std::vector<std::byte> TakeImages();

  // Returns the rows changed in epoch `first` or later, each once, ascending; false when the log does not reach back
  // that far and all rows must be scanned.
  bool ChangedFrom(uint32_t first, std::vector<uint32_t>* rows) const { return log_.From(first, rows); }
  void ForgetChanges(uint32_t before) { log_.Forget(before); }
  // Empties the log. From then on it is complete for later epochs, or for none after StopLog().
  void RestartLog(uint32_t epoch) { log_.Restart(epoch); }
  void StopLog() { RestartLog(UINT32_MAX); }
  // Prefetches the log before changes of rows. Thread-safe.
  [[gnu::always_inline]] void AskForLog() const { log_.AskAhead(); }

  // Renumbers the epochs of rows, images and log.
  void ShiftEpochs(const RecordPool& rows, const EpochShift& shift);

  uint32_t CountRows(const RecordPool& rows) const {
    uint32_t count = 0;
    VisitAll(rows, [&count](uint32_t) { ++count; });
    return count;
  }
  size_t MemoryBytes() const;

 private:
  void KeepImage(const RecordPool& rows, uint32_t row);
  [[gnu::always_inline]] void LogChange(uint32_t row, uint32_t epoch) {
    log_.Add(row, epoch, [this] { return size(); });
  }
  uint32_t TakeRecord(RecordPool& rows) {
    if (free_ != kNoRow || holes_ != 0 || fresh_ == 0) [[unlikely]]
      if (const uint32_t row = TakeUsed(rows); row != kNoRow) return row;
    return TakeFresh(rows);
  }
  // Returns a record that was erased; kNoRow if there is none, and then there are fresh ones.
  uint32_t TakeUsed(RecordPool& rows);
  uint32_t TakeFresh(RecordPool& rows) {
    const auto row = static_cast<uint32_t>(runs_.back().end() - fresh_--);
    if (fresh_ != 0) {  // prefetch the next one, which will be used soon
      PrefetchLines(rows.AtAllocated(row) + rows.record_bytes(), rows.record_bytes());
    }
    return row;
  }
  uint32_t TakeHole(RecordPool& rows);

  RecordRuns runs_;
  uint32_t fresh_ = 0;      // number of unused records of the last run
  uint32_t free_ = kNoRow;  // head of the list of erased records, linked through their keys
  uint32_t holes_ = 0;      // upper bound of the number of holes, all of them at or after first_hole_
  uint32_t first_hole_ = 0;

  uint32_t cut_cursor_ = kNoRow;
  std::vector<std::byte> images_;

  ChangeLog log_;
};

template <typename Visit>
uint32_t TableShard::VisitRecords(const RecordPool& rows, uint32_t from, uint32_t limit, Visit&& visit) const {
  constexpr uint32_t kAhead = 16;  // records between the prefetch of a header and its visit
  const RecordPool::View records = rows.view();
  const size_t record_bytes = rows.record_bytes(), first_run = runs_.FirstFrom(from);
  size_t asked_run = first_run;
  const std::byte* asked = nullptr;
  uint64_t left_to_ask = 0;  // number of records of the run before `asked_run` that remain to be prefetched
  const auto ask_for_next = [&] {
    if (left_to_ask == 0) {
      if (asked_run == runs_.size()) return;
      const RecordPool::Run run = runs_[asked_run++];
      asked = records.AtAllocated(std::max(from, run.begin));
      left_to_ask = run.end() - std::max(from, run.begin);
    }
    Prefetch(asked);
    asked += record_bytes;
    --left_to_ask;
  };
  for (uint32_t i = 0; i < kAhead; ++i) ask_for_next();
  for (size_t i = first_run; i < runs_.size(); ++i) {
    const RecordPool::Run run = runs_[i];
    const uint64_t end = run.end() - (i + 1 == runs_.size() ? fresh_ : 0);
    uint32_t row = std::max(from, run.begin);
    for (const std::byte* record = records.AtAllocated(row); row < end; ++row, record += record_bytes) {
      if (limit-- == 0) return row;
      ask_for_next();
      if (IsLive(*HeaderOf(record))) visit(row, record);
    }
  }
  return kNoRow;
}

}  // namespace monolith
