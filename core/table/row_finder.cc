#include "table/row_finder.h"

#include <algorithm>

namespace monolith {
namespace {

constexpr size_t kMostPrefetched = 512;  // of a row; the hardware follows a longer one by itself
alignas(64) constexpr IndexLine kEmptyLine{};

// Asking for address 0 would make the processor look for a page that is not there, every time anew.
const std::byte* RecordOrElsewhere(const RecordPool& pool, uint32_t row) {
  const std::byte* record = row == kNoRow ? nullptr : pool.At(row);
  return record == nullptr ? reinterpret_cast<const std::byte*>(&kEmptyLine) : record;
}

}  // namespace

void RowFinder::AskForLines() {
  if constexpr (kReadersLock) return;
  for (int i = 0; i < count; ++i) {
    const IndexShape shape = tables[i]->heads[BucketOfHash(hashes[i])].shape();
    lines_[i] = shape.num_lines == 0 ? &kEmptyLine : shape.Line(shape.HomeOf(hashes[i]));
  }
  for (int i = 0; i < count; ++i) __builtin_prefetch(lines_[i]);
}

void RowFinder::AskForRows(Purpose purpose) {
  if constexpr (kReadersLock) {
    std::fill_n(rows, count, kNoRow);
    return;
  }
  int overflowed[kBlock];
  int num_overflowed = 0;
  for (int i = 0; i < count; ++i) {
    const IndexLine& line = *lines_[i];
    const uint64_t matches = MatchTags(line, RowIndex::TagOf(hashes[i]));
    rows[i] = matches != 0 ? line.rows[FirstMatch(matches)] : kNoRow;
    overflowed[num_overflowed] = i;
    num_overflowed += static_cast<int>(matches == 0) & static_cast<int>(line.passed != 0);
  }
  // An entry that found its home line full is nearly always in the next one.
  for (int k = 0; k < num_overflowed; ++k) {
    const int i = overflowed[k];
    const IndexShape shape = tables[i]->heads[BucketOfHash(hashes[i])].shape();
    const IndexLine& next = *shape.Line(shape.Next(shape.HomeOf(hashes[i])));
    const uint64_t matches = MatchTags(next, RowIndex::TagOf(hashes[i]));
    if (matches != 0) rows[i] = next.rows[FirstMatch(matches)];
  }
  PrefetchRows(purpose);
}

void RowFinder::PrefetchRows(Purpose purpose) const {
  const auto bytes_of = [purpose](const Table& table) {
    return std::min(purpose == Purpose::kReading ? table.spec.read_bytes() : table.rows.record_bytes(), kMostPrefetched);
  };
  const auto prefetch = [](const std::byte* record, size_t bytes) {
    for (size_t offset = 0; offset < bytes; offset += 64) __builtin_prefetch(record + offset);
  };
  const Table* first = tables[0];
  const bool one_table = std::all_of(tables, tables + count, [first](const Table* each) { return each == first; });
  if (!one_table) {
    for (int i = 0; i < count; ++i) prefetch(RecordOrElsewhere(tables[i]->rows, rows[i]), bytes_of(*tables[i]));
    return;
  }
  const size_t bytes = bytes_of(*first);
  for (int i = 0; i < count; ++i) prefetch(RecordOrElsewhere(first->rows, rows[i]), bytes);
}

}  // namespace monolith
