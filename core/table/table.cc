#include "table/table.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "table/slot_keys.h"

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

void Table::RequireIds(std::span<const int64_t> ids) const {
  if (spec.wide_slots().empty()) return;
  const auto wide = std::find_if(ids.begin(), ids.end(), IsWideKey);
  if (wide == ids.end()) return;
  throw Error(Code::kInvalidArgument,
              "table '" + spec.name + "': slots share it, and " + std::to_string(*wide) +
                  " is no key of theirs that could be found by itself: give the buckets of keys, too, or ask the"
                  " Embeddings by slot and id (lookup)");
}

void RaiseTo(std::atomic<int64_t>& number, int64_t least) {
  int64_t found = number.load(std::memory_order_relaxed);
  while (found < least && !number.compare_exchange_weak(found, least, std::memory_order_relaxed)) {
  }
}

}  // namespace monolith
