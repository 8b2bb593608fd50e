// Visits the ids of a plan bucket by bucket, under each bucket's lock, on all threads.
//
// Inside a bucket the visits come in plan order, whatever the number of threads. A bucket that is locked by someone else is put
// off until the others of the task are done. A lock is held for at most kIdsPerHold ids.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <span>

#include "base/thread_pool.h"
#include "table/group.h"

namespace monolith {

struct PlannedId {
  Bucket& bucket;
  uint32_t bucket_number;
  Table& table;
  TableShard& shard;
  int table_place;  // of the table among those of the plan
  int64_t place;    // in plan.unique
  int64_t id;
  uint64_t hash;
  uint32_t row;  // kNoRow iff the id is not in the table
};

template <typename Local>
class PlannedWalk {
 public:
  PlannedWalk(Bucket* buckets, std::span<Table* const> tables, const Plan& plan)
      : buckets_(buckets), tables_(tables), plan_(plan) {}

  // Calls visitor.Visit(const PlannedId&, Local&) for every id, and visitor.Prefetch(place) a little before; returns the sum of
  // the tasks' Locals by +=.
  template <typename Visitor>
  Local Run(Visitor& visitor) {
    const int tasks = plan_.num_unique() < kIdsPerHold ? 1 : kNumBuckets / kBucketsPerTask;
    Local total{};
    std::mutex total_mutex;
    ParallelFor(tasks, [&](int task) {
      Local local{};
      const uint32_t width = kNumBuckets / tasks;
      VisitBuckets(task * width, (task + 1) * width, visitor, local);
      std::lock_guard lock(total_mutex);
      total += local;
    });
    return total;
  }

 private:
  static constexpr int kIdsPerHold = 512;
  static constexpr int kBucketsPerTask = 16;
  static constexpr int kBlock = 64;

  int64_t BeginOf(uint32_t bucket) const { return plan_.splits[static_cast<size_t>(bucket) * plan_.num_tables]; }

  template <typename Visitor>
  void VisitBuckets(uint32_t begin, uint32_t end, Visitor& visitor, Local& local) {
    uint16_t busy[kNumBuckets];
    int num_busy = 0;
    for (uint32_t number = begin; number < end; ++number) {
      if (BeginOf(number) == BeginOf(number + 1)) continue;
      if (number + 1 < end) PrefetchLines(number + 1);
      if (buckets_[number].lock.TryLock()) {
        VisitLocked(number, visitor, local);
      } else {
        busy[num_busy++] = static_cast<uint16_t>(number);
      }
    }
    for (int i = 0; i < num_busy; ++i) {
      buckets_[busy[i]].lock.Lock();
      VisitLocked(busy[i], visitor, local);
    }
  }

  // The lines of the first ids of a bucket, while the bucket before it is worked on.
  void PrefetchLines(uint32_t number) const {
    if (kReadersLock || plan_.hints.size() != 0 || plan_.num_tables != 1) return;
    const RowIndex::View* view = tables_[0]->shards[number].index.view();
    if (view == nullptr) return;
    const int64_t begin = BeginOf(number), end = std::min(BeginOf(number + 1), begin + kBlock);
    for (int64_t u = begin; u < end; ++u) __builtin_prefetch(view->Line(view->HomeOf(HashId(plan_.unique[u]))));
  }

  // Takes over the held lock and gives it back on every way out.
  template <typename Visitor>
  void VisitLocked(uint32_t number, Visitor& visitor, Local& local) {
    struct Unlocker {
      BucketLock& lock;
      ~Unlocker() { lock.Unlock(); }
    } holder{buckets_[number].lock};
    int held = 0;
    for (int place = 0; place < plan_.num_tables; ++place) {
      const size_t cell = static_cast<size_t>(number) * plan_.num_tables + place;
      for (int64_t u = plan_.splits[cell]; u < plan_.splits[cell + 1]; u += kBlock) {
        const int count = static_cast<int>(std::min<int64_t>(kBlock, plan_.splits[cell + 1] - u));
        if (held + count > kIdsPerHold) {
          holder.lock.Unlock();
          holder.lock.Lock();
          held = 0;
        }
        held += count;
        VisitBlock(number, place, u, count, visitor, local);
      }
    }
  }

  template <typename Visitor>
  void VisitBlock(uint32_t number, int place, int64_t first, int count, Visitor& visitor, Local& local) {
    Table& table = *tables_[place];
    TableShard& shard = table.shards[number];
    uint64_t hashes[kBlock];
    uint32_t rows[kBlock];
    GuessRows(table, shard, first, count, hashes, rows, visitor);
    for (int i = 0; i < count; ++i) {
      const int64_t id = plan_.unique[first + i];
      uint32_t row = rows[i];
      if (row == kNoRow || !TableShard::Holds(table.rows, row, id)) row = shard.Find(table.rows, hashes[i], id);
      visitor.Visit(PlannedId{buckets_[number], number, table, shard, place, first + i, id, hashes[i], row}, local);
    }
  }

  template <typename Visitor>
  void GuessRows(const Table& table, const TableShard& shard, int64_t first, int count, uint64_t* hashes, uint32_t* rows,
                 Visitor& visitor) const {
    const RowIndex::View* view = shard.index.view();
    const bool hinted = plan_.hints.size() != 0;
    for (int i = 0; i < count; ++i) {
      hashes[i] = HashId(plan_.unique[first + i]);
      rows[i] = hinted ? plan_.hints[first + i] : kNoRow;
      if (!hinted && view != nullptr) __builtin_prefetch(view->Line(view->HomeOf(hashes[i])));
    }
    for (int i = 0; i < count; ++i) {
      if (!hinted && view != nullptr) {
        const IndexLine& line = *view->Line(view->HomeOf(hashes[i]));
        const TagMatches matches = MatchTags(line, RowIndex::TagOf(hashes[i]));
        if (matches.any()) rows[i] = line.rows[matches.first()];
      }
      PrefetchRow(table, rows[i]);
      visitor.Prefetch(first + i);
    }
  }

  static void PrefetchRow(const Table& table, uint32_t row) {
    constexpr size_t kMostPrefetched = 512;
    const std::byte* record = row == kNoRow ? nullptr : table.rows.At(row);
    if (record == nullptr) return;
    const size_t bytes = std::min(table.rows.record_bytes(), kMostPrefetched);
    for (size_t offset = 0; offset < bytes; offset += 64) __builtin_prefetch(record + offset, 1);
  }

  Bucket* const buckets_;
  const std::span<Table* const> tables_;
  const Plan& plan_;
};

}  // namespace monolith
