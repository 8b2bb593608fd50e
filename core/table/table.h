// One table: the layout of its rows, and their storage, bucket by bucket.
//
// Owned by a Group, whose locks and gate guard it: a shard and its records need the lock of their bucket, except for
// lookups, which check afterwards (table/bucket_lock.h). The first three members never change; the counters may be read
// and raised from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "base/mutex.h"
#include "memory/block_arena.h"
#include "memory/record_pool.h"
#include "table/index_memory.h"
#include "table/table_shard.h"
#include "table/table_spec.h"

namespace monolith {

void RaiseTo(std::atomic<int64_t>& number, int64_t least);

struct Table {
  // Small indexes allocate memory from `blocks`, which outlives the table.
  Table(TableSpec table_spec, uint32_t table_number, BlockArena& blocks);

  const TableSpec spec;
  const uint32_t number;  // in the group
  const uint64_t digest;  // of the schema text
  RecordPool rows;
  IndexMemory index;
  std::unique_ptr<TableShard[]> shards;  // one per bucket
  std::atomic<int64_t> newest_time{0};   // of all updates, in Unix seconds; removed rows included
  std::atomic<uint64_t> evicted{0};      // rows removed by expiry or cap
  Mutex cap_mutex;                       // held while rows above the cap are evicted

  int64_t Size() const;
  // Throws kInvalidArgument for an id that does not determine its bucket: a wide key (table/slot_keys.h).
  void RequireIds(std::span<const int64_t> ids) const;
  void RaiseNewestTime(int64_t time) { RaiseTo(newest_time, time); }
};

}  // namespace monolith
