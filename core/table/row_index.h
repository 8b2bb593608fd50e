// Maps the hash of an id to the number of its row, for one table in one bucket.
//
// The key itself is stored in the row, so a match of tags (table/index_line.h) is only a candidate: 1 in 255 of other
// ids' entries has the same tag. An entry is in its home line or, if that was full, in the first later line with room;
// a search ends at the first line that no entry overflowed.
//
// All changes need the bucket's lock. Readers without it may read the shape of an index and search that
// (table/index_memory.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "table/index_line.h"
#include "table/index_memory.h"
#include "table/row.h"

namespace monolith {

class RowIndex {
 public:
  // The bucket uses the top bits of a hash, the tag the lowest. The home line is found by a hash that is secret to this
  // process (base/process_key.h): however ids are chosen, few of them share a line.
  static uint8_t TagOf(uint64_t hash) {
    const auto tag = static_cast<uint8_t>(hash);
    return tag == 0 ? 1 : tag;
  }

  RowIndex() = default;
  RowIndex(const RowIndex&) = delete;
  RowIndex& operator=(const RowIndex&) = delete;

  // Must be called before everything else; the memory outlives the index.
  void Use(IndexMemory* memory, uint32_t bucket) {
    memory_ = memory;
    bucket_ = bucket;
  }

  uint32_t bucket() const { return bucket_; }
  IndexShape shape() const { return memory_->ShapeOf(bucket_); }
  uint32_t size() const { return memory_->SizeOf(bucket_); }

  // Returns the row for which is_key(row) holds among those inserted under `hash`; kNoRow if none.
  template <typename IsKey>
  static uint32_t Find(const IndexShape& shape, uint64_t hash, IsKey&& is_key) {
    return Find(shape, hash, shape.HomeLineOf(hash), is_key);
  }
  // As above, for callers that have the home line already.
  template <typename IsKey>
  static uint32_t Find(const IndexShape& shape, uint64_t hash, const IndexLine* home, IsKey&& is_key) {
    const uint32_t row = FindIn(*home, TagOf(hash), is_key);
    return row != kNoRow || home->passed == 0 ? row : FindAfterHome(shape, hash, is_key);
  }

  // True iff Grow() should precede the next insert: there is no room, or more lines are available for free.
  bool ShouldGrow() const {
    const uint32_t entries = size();
    if (entries >= limit_) return true;
    // An index that is far emptier than its neighbours would be rebuilt for nothing. Growth is not urgent, so only
    // every 16th entry checks.
    return entries % 16 == 0 && limit_ >= kOnPlates && entries >= limit_ / 2 &&
           memory_->LinesOnPlates(bucket_) > shape().num_lines;
  }
  // Makes room for at least `entries`, and for growth beyond them. for_each(add) must call add(hash, row) for every
  // entry. Neighbours that share plates have the same phase; other phases in [0, 1) spread the growth of the other
  // indexes over time.
  template <typename ForEach>
  void Grow(uint32_t entries, double phase, ForEach&& for_each) {
    Rebuild rebuild(LinesFor(entries, phase));
    for_each([&rebuild](uint64_t hash, uint32_t row) { rebuild.Insert(hash, row); });
    Replace(rebuild, phase);
  }

  // REQUIRES: Grow() was called if ShouldGrow(), and there is no entry for this row yet.
  void Insert(uint64_t hash, uint32_t row) { Insert(hash, row, shape().HomeLineOf(hash)); }
  // As above, for callers that have the home line already.
  void Insert(uint64_t hash, uint32_t row, const IndexLine* home) {
    // Searches return lines as constant; they belong to this index.
    if (!Put(*const_cast<IndexLine*>(home), hash, row)) [[unlikely]]
      InsertAfterHome(hash, row);
    memory_->SetSize(bucket_, size() + 1);
  }
  // REQUIRES: the entry exists.
  void Erase(uint64_t hash, uint32_t row);
  // Called together with IndexMemory::Clear().
  void Forget() { limit_ = 0; }

 private:
  // Lines being filled in a thread-local scratch buffer.
  struct Rebuild {
    explicit Rebuild(uint32_t lines);
    void Insert(uint64_t hash, uint32_t row);
    uint32_t num_lines;
    IndexLine* lines;
    uint8_t* used;  // entries of each line: searching the line for a free entry right after a write to it would stall
  };

  static constexpr uint32_t kOnPlates =
      kPlateLines * kLineEntries / 2;  // an index with that many entries is not a small one

  template <typename IsKey>
  static uint32_t FindIn(const IndexLine& line, uint8_t tag, IsKey&& is_key) {
    for (uint64_t matches = MatchTags(line, tag); matches != 0; matches &= matches - 1) {
      const uint32_t row = line.rows[FirstMatch(matches)];
      if (is_key(row)) return row;
    }
    return kNoRow;
  }
  template <typename IsKey>
  static uint32_t FindAfterHome(const IndexShape& shape, uint64_t hash, IsKey&& is_key) {
    uint32_t at = shape.HomeOf(hash);
    for (uint32_t seen = 1; seen < shape.num_lines; ++seen) {
      at = shape.Next(at);
      const IndexLine& line = *shape.Line(at);
      const uint32_t row = FindIn(line, TagOf(hash), is_key);
      if (row != kNoRow) return row;
      if (line.passed == 0) break;
    }
    return kNoRow;
  }
  // False iff the line is full.
  static bool Put(IndexLine& line, uint64_t hash, uint32_t row) {
    const uint64_t empty = MatchTags(line, 0);
    if (empty == 0) return false;
    line.rows[FirstMatch(empty)] = row;
    line.tags[FirstMatch(empty)] = TagOf(hash);
    return true;
  }
  // REQUIRES: the home line is full.
  void InsertAfterHome(uint64_t hash, uint32_t row);

  uint32_t LinesFor(uint32_t entries, double phase) const;
  void Replace(const Rebuild& rebuild, double phase);

  IndexMemory* memory_ = nullptr;
  uint32_t bucket_ = 0;
  uint32_t limit_ = 0;
};

}  // namespace monolith
