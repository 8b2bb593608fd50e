#include "table/table.h"

#include <utility>

#include "base/hash.h"

namespace monolith {

Table::Table(TableSpec table_spec, uint32_t table_number, BlockArena& blocks)
    : spec(std::move(table_spec)),
      number(table_number),
      digest(DigestOf(spec.SchemaText())),
      rows(spec.row_bytes()),
      index(blocks),
      shards(std::make_unique<TableShard[]>(kNumBuckets)) {
  for (uint32_t i = 0; i < kNumBuckets; ++i) shards[i].index.Use(&index, i);
}

int64_t Table::Size() const {
  int64_t size = 0;
  for (uint32_t i = 0; i < kNumBuckets; ++i) size += index.SizeOf(i);
  return size;
}

void Table::RaiseNewestTime(int64_t time) {
  int64_t newest = newest_time.load(std::memory_order_relaxed);
  while (newest < time && !newest_time.compare_exchange_weak(newest, time, std::memory_order_relaxed)) {
  }
}

}  // namespace monolith
