// Guesses the rows of a block of ids, so that their cache and address-translation misses overlap.
//
// Short loops over the block: hash the ids; prefetch their index lines; match the tags; prefetch the rows that they
// point to. Other work of the caller, with this block or with others, overlaps with the memory accesses.
//
// Nothing is locked: the result is a guess, and memory may change concurrently (table/bucket_lock.h). Settle() turns a
// guess into the answer: always under the bucket's lock; without it, iff the bucket's version has not changed. Under
// the thread sanitizer nothing is guessed. Used by one thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/prefetch.h"
#include "table/bucket_lock.h"
#include "table/table.h"

namespace monolith {

enum class Purpose { kReading, kWriting };  // which part of a row will be accessed: its weights, or all of it

// The table of a block's ids, if all ids have the same one: values common to all ids are computed once.
class OneTable {
 public:
  OneTable(const Table& table, Purpose purpose) : table_(table), index_(table.index), rows_(table.rows.view()) {
    asked_bytes_ = AskedBytes(table, purpose);
  }
  const Table& table(int) const { return table_; }
  const IndexMemory& index(int) const { return index_; }
  RecordPool::View rows(int) const { return rows_; }
  size_t asked_bytes(int) const { return asked_bytes_; }

  static size_t AskedBytes(const Table& table, Purpose purpose) {
    constexpr size_t kMost = 512;  // for longer rows the hardware prefetcher takes effect
    return std::min(purpose == Purpose::kReading ? table.spec.read_bytes() : table.rows.record_bytes(), kMost);
  }

 private:
  const Table& table_;
  const IndexMemory& index_;
  const RecordPool::View rows_;
  size_t asked_bytes_;
};

// The tables of a block's ids, if they differ from id to id.
class ManyTables {
 public:
  static constexpr int kBlock = 32;

  explicit ManyTables(Purpose purpose) : purpose_(purpose) {}
  void Set(int i, const Table* table) { tables_[i] = table; }
  const Table& table(int i) const { return *tables_[i]; }
  const IndexMemory& index(int i) const { return tables_[i]->index; }
  RecordPool::View rows(int i) const { return tables_[i]->rows.view(); }
  size_t asked_bytes(int i) const { return OneTable::AskedBytes(*tables_[i], purpose_); }

 private:
  const Purpose purpose_;
  const Table* tables_[kBlock];
};

class RowFinder {
 public:
  static constexpr int kBlock = 32;  // pages in flight must also fit the processor's first-level TLB

  int count() const { return count_; }
  int64_t id(int i) const { return ids_[i]; }
  uint64_t hash(int i) const { return hashes_[i]; }
  uint32_t bucket(int i) const { return BucketOfHash(hashes_[i]); }

  // Starts a block. `buckets` is null when the ids determine them. REQUIRES: count <= kBlock; ids stay in place.
  void Take(const int64_t* ids, const uint16_t* buckets, int count) {
    ids_ = ids;
    count_ = count;
    if (buckets == nullptr) {
      for (int i = 0; i < count; ++i) hashes_[i] = HashId(ids[i]);
    } else {
      for (int i = 0; i < count; ++i) hashes_[i] = HashInBucket(buckets[i], ids[i]);
    }
  }

  // Guess from the current index, in two steps: other work between them overlaps with the arrival of the lines.
  template <typename Tables>
  void AskForLines(const Tables& tables);
  template <typename Tables>
  void GuessFromLines(const Tables& tables);
  // Replaces both steps when an earlier read left the rows: only ids that it did not find need index lines.
  template <typename Tables>
  void AskForUnhintedLines(const Tables& tables, const uint32_t* hints);
  template <typename Tables>
  void GuessFromHints(const Tables& tables, const uint32_t* hints);

  // Prefetches the row that was guessed for id i.
  template <typename Tables>
  [[gnu::always_inline]] void AskForRow(const Tables& tables, int i) const {
    const std::byte* record = records_[i];
    if (record == nullptr) [[unlikely]]
      return;  // a prefetch of address 0 would start a page walk that fails
    Prefetch(record);
    Prefetch(record + kCacheLine);
    if (tables.asked_bytes(i) > 2 * kCacheLine)
      PrefetchLines(record + 2 * kCacheLine, tables.asked_bytes(i) - 2 * kCacheLine);
  }
  // Starts the address translation of all rows that were guessed, and prefetches their first lines.
  [[gnu::always_inline]] void AskForPages() const {
    for (int i = 0; i < count_; ++i) {
      if (records_[i] != nullptr) PrefetchFar(records_[i]);
    }
  }
  // For callers without other work between one prefetch and the next.
  template <typename Tables>
  [[gnu::always_inline]] void AskForRows(const Tables& tables) const {
    for (int i = 0; i < count_; ++i) AskForRow(tables, i);
  }

  // Returns the home line of id i in the current index, for an insert under the bucket's lock.
  const IndexLine* HomeLine(const Table& table, int i) const { return HomeLine(table.index.ShapeOf(bucket(i)), i); }

  // Returns the record of id i, null iff it has none; sets *row to its number or kNoRow.
  template <typename Tables>
  [[gnu::always_inline]] std::byte* Settle(const Tables& tables, int i, uint32_t* row) const {
    std::byte* record = records_[i];
    *row = rows_[i];
    if (record != nullptr && IsRowOf(record, ids_[i])) [[likely]]
      return record;
    return Search(tables.table(i), i, row);
  }

 private:
  std::byte* Search(const Table& table, int i, uint32_t* row) const;

  // An index with the same number of lines as at the prefetch still has the same lines (IndexMemory::Replace).
  [[gnu::always_inline]] const IndexLine* HomeLine(const IndexShape& shape, int i) const {
    return shape.num_lines == num_lines_[i] ? lines_[i] : shape.HomeLineOf(hashes_[i]);
  }

  template <typename Tables>
  [[gnu::always_inline]] void AskForLine(const Tables& tables, int i) {
    const IndexShape shape = tables.index(i).ShapeOf(bucket(i));
    lines_[i] = shape.HomeLineOf(hashes_[i]);
    num_lines_[i] = shape.num_lines;
    Prefetch(lines_[i]);
  }

  template <typename Tables>
  void GuessRow(const Tables& tables, int i, uint32_t row) {
    rows_[i] = row;
    records_[i] = tables.rows(i).At(row);
  }
  void GuessNoRow(int i) {
    rows_[i] = kNoRow;
    records_[i] = nullptr;
  }

  // Prefetches the other rows with a matching tag, for Search().
  template <typename Tables>
  [[gnu::always_inline]] void AskForOthers(const Tables& tables, int i, const IndexLine& line, uint64_t matches) const {
    for (; matches != 0; matches &= matches - 1) {
      const std::byte* record = tables.rows(i).At(line.rows[FirstMatch(matches)]);
      if (record != nullptr) PrefetchLines(record, tables.asked_bytes(i));
    }
  }

  // Calls visit(line) for the two lines after the home line of id i, which hold nearly all of its overflowed entries,
  // until it returns true.
  template <typename Tables, typename Visit>
  [[gnu::always_inline]] void ForLinesAfterHome(const Tables& tables, int i, Visit&& visit) {
    const IndexShape shape = tables.index(i).ShapeOf(bucket(i));
    uint32_t at = shape.HomeOf(hashes_[i]);
    for (int lines = 0; lines < 2; ++lines) {
      at = shape.Next(at);
      if (visit(*shape.Line(at))) return;
    }
  }

  // Marks all lines as not prefetched: no index has UINT32_MAX lines.
  void AskForNothing() { std::fill_n(num_lines_, count_, UINT32_MAX); }

  void GuessNothing() {
    std::fill_n(rows_, count_, kNoRow);
    std::fill_n(records_, count_, nullptr);
  }

  int count_ = 0;
  const int64_t* ids_ = nullptr;
  uint64_t hashes_[kBlock];
  const IndexLine* lines_[kBlock];  // home lines, in indexes that have
  uint32_t num_lines_[kBlock];      // this number of lines
  uint32_t rows_[kBlock];
  std::byte* records_[kBlock];
};

template <typename Tables>
[[gnu::always_inline]] inline void RowFinder::AskForLines(const Tables& tables) {
  if constexpr (kReadersLock) return AskForNothing();
  for (int i = 0; i < count_; ++i) AskForLine(tables, i);
}

template <typename Tables>
[[gnu::always_inline]] inline void RowFinder::AskForUnhintedLines(const Tables& tables, const uint32_t* hints) {
  AskForNothing();
  if constexpr (kReadersLock) return;
  for (int i = 0; i < count_; ++i) {
    if (hints[i] == kNoRow) AskForLine(tables, i);
  }
}

template <typename Tables>
[[gnu::always_inline]] inline void RowFinder::GuessFromLines(const Tables& tables) {
  if constexpr (kReadersLock) return GuessNothing();
  int passed_on[kBlock];  // ids whose home line has overflowed
  int num_passed_on = 0;
  for (int i = 0; i < count_; ++i) {
    const IndexLine& line = *lines_[i];
    const uint64_t matches = MatchTags(line, RowIndex::TagOf(hashes_[i]));
    if (matches != 0) [[likely]] {
      GuessRow(tables, i, line.rows[FirstMatch(matches)]);
      if ((matches & (matches - 1)) != 0) [[unlikely]]
        AskForOthers(tables, i, line, matches & (matches - 1));
      continue;
    }
    GuessNoRow(i);
    if (line.passed == 0) continue;
    passed_on[num_passed_on++] = i;
    ForLinesAfterHome(tables, i, [](const IndexLine& next) {
      Prefetch(&next);
      return false;
    });
  }
  for (int k = 0; k < num_passed_on; ++k) {
    const int i = passed_on[k];
    ForLinesAfterHome(tables, i, [&](const IndexLine& next) {
      const uint64_t matches = MatchTags(next, RowIndex::TagOf(hashes_[i]));
      if (matches != 0) GuessRow(tables, i, next.rows[FirstMatch(matches)]);
      return matches != 0 || next.passed == 0;
    });
  }
}

template <typename Tables>
void RowFinder::GuessFromHints(const Tables& tables, const uint32_t* hints) {
  for (int i = 0; i < count_; ++i) {
    hints[i] != kNoRow ? GuessRow(tables, i, hints[i]) : GuessNoRow(i);
  }
}

}  // namespace monolith
