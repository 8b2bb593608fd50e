#include "table/memory_return.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"
#include "memory/pages.h"

namespace monolith {
namespace {

constexpr uint64_t kWorthReturning = uint64_t{8} << 20;
constexpr uint64_t kLeastAtOnce = uint64_t{16} << 10;  // a system call is not worth it for less
constexpr uint64_t kFewEntries = 4;                    // an index with room for this many times its entries is rebuilt

// The complete pages inside a piece of memory.
struct Pages {
  Pages(std::byte* from, std::byte* to)
      : begin(reinterpret_cast<uintptr_t>(from) + PageBytes() - 1), end(reinterpret_cast<uintptr_t>(to)) {
    begin -= begin % PageBytes();
    end -= end % PageBytes();
    if (begin + kLeastAtOnce > end) end = begin;
  }
  bool empty() const { return begin == end; }
  bool Contains(const std::byte* from, size_t bytes) const {
    const auto at = reinterpret_cast<uintptr_t>(from);
    return at >= begin && at + bytes <= end;
  }

  uintptr_t begin, end;
};

class RecordSweep {
 public:
  explicit RecordSweep(Table& table) : rows_(table.rows) {}

  void Extent(uint64_t extent) {
    const uint64_t begin = extent * rows_.extent_records();
    const uint64_t end = std::min(begin + rows_.extent_records(), rows_.allocated());
    uint64_t first = begin;  // record after the last row
    for (uint64_t row = begin; row < end; ++row) {
      if (!IsLive(*HeaderOf(At(row)))) continue;
      ReturnBetween(first, row);
      first = row + 1;
    }
    ReturnBetween(first, end);
  }

 private:
  std::byte* At(uint64_t row) const { return rows_.AtAllocated(static_cast<uint32_t>(row)); }

  // None of the records [first, last) holds a row.
  void ReturnBetween(uint64_t first, uint64_t last) {
    if (first == last) return;
    const Pages pages(At(first), At(last - 1) + rows_.record_bytes());
    uint64_t returned = 0;
    for (uint64_t row = first; row < last; ++row) {
      RowHeader& header = *HeaderOf(At(row));
      const bool in_memory = header.meta == kListedMeta || header.key == kKeyOfHoleInMemory;
      if (!in_memory) continue;  // never used, or returned before
      header.meta = kHoleMeta;
      header.key = kKeyOfHoleInMemory;
      returned += pages.Contains(At(row), sizeof(RowHeader));
    }
    if (pages.empty()) return;
    DropPages(reinterpret_cast<std::byte*>(pages.begin), pages.end - pages.begin);
    rows_.NoteReturned(returned);
  }

  RecordPool& rows_;
};

void MakeIndexAnew(Table& table) {
  table.index.Clear();
  ParallelFor(kPlateColumns, [&](int column) {
    for (uint32_t bucket = column * kPlateBuckets; bucket < (column + 1) * kPlateBuckets; ++bucket) {
      TableShard& shard = table.shards[bucket];
      shard.index.Forget();
      const uint32_t entries = shard.CountRows(table.rows);
      if (entries != 0) shard.Reserve(table.rows, bucket, entries);
      table.index.SetSize(bucket, entries);
    }
  });
}

uint64_t PlacesOf(const Table& table) {
  uint64_t lines = 0;
  for (uint32_t bucket = 0; bucket < kNumBuckets; ++bucket) lines += table.index.ShapeOf(bucket).num_lines;
  return lines * kLineEntries;
}

}  // namespace

bool WastesMemory(const Table& table) {
  const uint64_t resident = table.rows.resident_bytes();
  const uint64_t used = static_cast<uint64_t>(table.Size()) * table.rows.record_bytes();
  return resident >= kWorthReturning && used < resident / 2;
}

void ReturnUnusedMemory(Table& table) {
  for (uint32_t bucket = 0; bucket < kNumBuckets; ++bucket) table.shards[bucket].ListNoFreeRecords();
  RecordSweep sweep(table);
  const uint64_t per_extent = table.rows.extent_records();
  ParallelFor(static_cast<int>((table.rows.allocated() + per_extent - 1) / per_extent),
              [&sweep](int extent) { sweep.Extent(static_cast<uint64_t>(extent)); });
  if (PlacesOf(table) > kFewEntries * static_cast<uint64_t>(table.Size())) MakeIndexAnew(table);
}

}  // namespace monolith
