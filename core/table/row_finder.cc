#include "table/row_finder.h"

#include <algorithm>

namespace monolith {
namespace {

constexpr size_t kMostPrefetched = 512;  // of a row; the hardware follows a longer one by itself
alignas(64) constexpr IndexLine kEmptyLine{};

void AskForRow(const Table& table, uint32_t row, RowFinder::Purpose purpose) {
  // Asking for address 0 would make the processor look for a page that is not there, every time anew.
  const std::byte* record = row == kNoRow ? nullptr : table.rows.At(row);
  if (record == nullptr) return;
  __builtin_prefetch(record);
  __builtin_prefetch(record + 64);
  const size_t bytes = purpose == RowFinder::Purpose::kReading ? table.spec.read_bytes() : table.rows.record_bytes();
  for (size_t offset = 128; offset < std::min(bytes, kMostPrefetched); offset += 64) __builtin_prefetch(record + offset);
}

}  // namespace

void RowFinder::AskForLines() {
  if constexpr (kReadersLock) return;
  for (int i = 0; i < count; ++i) {
    const IndexShape shape = tables[i]->heads[BucketOfHash(hashes[i])].shape();
    lines_[i] = shape.num_lines == 0 ? &kEmptyLine : shape.Line(shape.HomeOf(hashes[i]));
    __builtin_prefetch(lines_[i]);
  }
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
    AskForRow(*tables[i], rows[i], purpose);
    overflowed[num_overflowed] = i;
    num_overflowed += static_cast<int>(matches == 0) & static_cast<int>(line.passed != 0);
  }
  // An entry that found its home line full is nearly always in the next one.
  for (int k = 0; k < num_overflowed; ++k) {
    const int i = overflowed[k];
    const IndexShape shape = tables[i]->heads[BucketOfHash(hashes[i])].shape();
    const IndexLine& next = *shape.Line(shape.Next(shape.HomeOf(hashes[i])));
    const uint64_t matches = MatchTags(next, RowIndex::TagOf(hashes[i]));
    if (matches == 0) continue;
    rows[i] = next.rows[FirstMatch(matches)];
    AskForRow(*tables[i], rows[i], purpose);
  }
}

void RowFinder::AskForHintedRows(Purpose purpose) const {
  for (int i = 0; i < count; ++i) AskForRow(*tables[i], rows[i], purpose);
}

}  // namespace monolith
