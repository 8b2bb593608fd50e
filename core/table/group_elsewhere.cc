// Group for an owner that keeps the rows elsewhere.
#include <cstring>

#include "table/group.h"

namespace monolith {

Group::RowEpochs Group::row_epochs() const {
  Gate::Shared call(gate_);
  return {clock_.epoch, epoch_base_, clock_.cut_is_open, clock_.cut_epoch};
}

std::vector<uint8_t> Group::Admit(std::span<const NewId> ids, int64_t step) {
  std::vector<uint8_t> admitted(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const NewId& id = ids[i];
    BucketGuard guard(locks_[id.bucket], Access::kChanges);
    admitted[i] = !IsNotAdmitted(buckets_[id.bucket], *tables_[id.table], id.key, HashInBucket(id.bucket, id.key),
                                 id.count, step);
  }
  return admitted;
}

void Group::CountEvicted(int table, uint64_t rows) {
  MutableTable(table).evicted.fetch_add(rows, std::memory_order_relaxed);
}

void Group::PutRow(int table_number, uint32_t bucket, const RowHeader& header, const std::byte* payload) {
  Table& table = MutableTable(table_number);
  Gate::Shared call(gate_);
  BucketGuard guard(locks_[bucket], Access::kChanges);
  const uint32_t row = InsertUnset(bucket, table, header.key, HashInBucket(bucket, header.key), nullptr);
  std::byte* record = table.rows.AtAllocated(row);
  *HeaderOf(record) = header;
  std::memcpy(PayloadOf(record), payload, static_cast<size_t>(table.spec.payload_bytes()));
}

void Group::TakeRows(int table_number, uint32_t begin, uint32_t end,
                     const std::function<void(uint32_t bucket, const std::byte* record)>& take) {
  Table& table = MutableTable(table_number);
  Gate::Shared call(gate_);
  HistoryClock silent = clock_;  // a change of a row is neither logged nor kept for a cut
  silent.cut_is_open = silent.logs_changes = false;
  for (uint32_t bucket = begin; bucket < end; ++bucket) {
    TableShard& shard = table.shards[bucket];
    BucketGuard guard(locks_[bucket], Access::kChanges);
    if (shard.size() == 0) continue;
    shard.VisitAll(table.rows, [&](uint32_t row) { take(bucket, table.rows.AtAllocated(row)); });
    shard.EraseAll(table.rows, silent);
  }
}

}  // namespace monolith
