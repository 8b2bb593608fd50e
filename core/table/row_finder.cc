#include "table/row_finder.h"

#include <algorithm>

namespace monolith {
namespace {

constexpr size_t kMostPrefetched = 512;  // of a row; the hardware follows a longer one by itself
alignas(64) constexpr IndexLine kEmptyLine{};

}  // namespace

void RowFinder::AskForLines() {
  for (int i = 0; i < count; ++i) {
    const IndexShape shape = tables[i]->heads[BucketOfHash(hashes[i])].shape();
    lines_[i] = shape.num_lines == 0 ? &kEmptyLine : shape.Line(shape.HomeOf(hashes[i]));
  }
  for (int i = 0; i < count; ++i) __builtin_prefetch(lines_[i]);
}

void RowFinder::AskForRows(Purpose purpose) {
  MatchLines();
  PrefetchRows(purpose);
}

void RowFinder::MatchLines() {
  int overflowed[kBlock];
  int num_overflowed = 0;
  for (int i = 0; i < count; ++i) {
    const uint32_t matches = MatchTags(*lines_[i], RowIndex::TagOf(hashes[i]));
    rows[i] = matches != 0 ? lines_[i]->rows[FirstMatch(matches)] : kNoRow;
    if (matches == 0 && lines_[i]->passed != 0) overflowed[num_overflowed++] = i;
  }
  // An entry that found its home line full is nearly always in the next one.
  for (int k = 0; k < num_overflowed; ++k) {
    const int i = overflowed[k];
    const IndexShape shape = tables[i]->heads[BucketOfHash(hashes[i])].shape();
    const IndexLine& next = *shape.Line(shape.Next(shape.HomeOf(hashes[i])));
    const uint32_t matches = MatchTags(next, RowIndex::TagOf(hashes[i]));
    if (matches != 0) rows[i] = next.rows[FirstMatch(matches)];
  }
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
    for (int i = 0; i < count; ++i) prefetch(tables[i]->rows.At(rows[i]), bytes_of(*tables[i]));
    return;
  }
  const size_t bytes = bytes_of(*first);
  for (int i = 0; i < count; ++i) prefetch(first->rows.At(rows[i]), bytes);
}

}  // namespace monolith
