// From the hash of an id to the number of its row, for one table in one bucket.
//
// Lines of one cache line hold 12 eight-bit tags, 12 row numbers and a count of entries that had to go past the line. The key
// itself lives in the row, so a tag match is only a candidate. An entry sits in its home line or, if that was full, in the first
// later line with room; a search ends at the first line that nothing went past.
//
// All changes need the bucket's lock. Readers without it may call the const members on a View they loaded once: a view's
// shape never changes, and lines are neither moved nor unmapped before Clear().
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "memory/block_arena.h"
#include "table/row.h"

namespace monolith {

inline constexpr int kLineEntries = 12;

struct alignas(64) IndexLine {
  uint8_t tags[kLineEntries];  // 0 = empty
  uint16_t passed;             // entries stored in later lines because this one was full
  uint16_t unused;
  uint32_t rows[kLineEntries];
};
static_assert(sizeof(IndexLine) == 64);

// Entries of a line whose tag may equal `tag`, one bit in each matching byte of two words. Never misses a match; a false one is
// possible above a true one, which the key comparison settles.
struct TagMatches {
  uint64_t low;   // entries 0..7, at bits 7, 15, ...
  uint32_t high;  // entries 8..11

  bool any() const { return (low | high) != 0; }
  int first() const { return low != 0 ? std::countr_zero(low) / 8 : 8 + std::countr_zero(high) / 8; }
  void drop_first() { low != 0 ? low &= low - 1 : high &= high - 1; }
};

inline TagMatches MatchTags(const IndexLine& line, uint8_t tag) {
  constexpr uint64_t kOnes = 0x0101010101010101ull, kTops = 0x8080808080808080ull;
  uint64_t low;
  uint32_t high;
  std::memcpy(&low, line.tags, 8);
  std::memcpy(&high, line.tags + 8, 4);
  low ^= kOnes * tag;
  high ^= static_cast<uint32_t>(kOnes) * tag;
  return {(low - kOnes) & ~low & kTops,
          (high - static_cast<uint32_t>(kOnes)) & ~high & static_cast<uint32_t>(kTops)};
}

class RowIndex {
 public:
  // Which lines there are. Segments hold 1, 1, 2, 4, 8, 16, 32, 32, ... lines: growth adds segments and frees none.
  struct View {
    uint32_t num_lines;
    uint32_t num_segments;
    IndexLine* segments[1];  // really num_segments of them

    uint32_t HomeOf(uint64_t hash) const { return HomeAmong(hash, num_lines); }
    IndexLine* Line(uint32_t line) const {
      if (line >= 32) [[likely]] return segments[5 + (line >> 5)] + (line & 31);
      const int segment = std::bit_width(line);
      return segments[segment] + (line - (line == 0 ? 0 : 1u << (segment - 1)));
    }
    uint32_t Next(uint32_t line) const { return line + 1 == num_lines ? 0 : line + 1; }
  };

  // The bucket takes the top bits of a hash, the home line middle ones, the tag the lowest: all of them independent.
  static uint8_t TagOf(uint64_t hash) {
    const auto tag = static_cast<uint8_t>(hash);
    return tag == 0 ? 1 : tag;
  }
  static uint32_t HomeAmong(uint64_t hash, uint32_t num_lines) {
    return static_cast<uint32_t>((((hash >> 20) & 0xffffffffu) * num_lines) >> 32);
  }

  RowIndex() = default;
  ~RowIndex();
  RowIndex(const RowIndex&) = delete;
  RowIndex& operator=(const RowIndex&) = delete;

  // Null iff nothing was ever inserted.
  const View* view() const { return view_.load(std::memory_order_relaxed); }
  uint32_t size() const { return size_; }

  // The row for which is_key(row) holds among those inserted under `hash`; kNoRow if none.
  template <typename IsKey>
  static uint32_t Find(const View* view, uint64_t hash, IsKey&& is_key) {
    if (view == nullptr) return kNoRow;
    const uint8_t tag = TagOf(hash);
    uint32_t at = view->HomeOf(hash);
    for (uint32_t seen = 0; seen < view->num_lines; ++seen, at = view->Next(at)) {
      const IndexLine& line = *view->Line(at);
      for (TagMatches matches = MatchTags(line, tag); matches.any(); matches.drop_first()) {
        const uint32_t row = line.rows[matches.first()];
        if (is_key(row)) return row;
      }
      if (line.passed == 0) break;
    }
    return kNoRow;
  }

  // True iff one more entry needs Grow() first.
  bool IsFull() const { return size_ >= limit_; }
  // Makes room for at least `entries`, and for growth beyond them. for_each(visit) must call visit(hash, row) for every entry.
  // `phase` in [0, 1) spreads the growth of sibling indexes over time.
  template <typename ForEach>
  void Grow(uint32_t entries, double phase, BlockArena& arena, ForEach&& for_each) {
    Rebuild rebuild(LinesFor(entries, phase));
    for_each([&rebuild](uint64_t hash, uint32_t row) { rebuild.Insert(hash, row); });
    Replace(rebuild, phase, arena);
  }

  // REQUIRES: !IsFull(), and no entry for this row yet.
  void Insert(uint64_t hash, uint32_t row);
  // REQUIRES: the entry exists.
  void Erase(uint64_t hash, uint32_t row);
  // REQUIRES: no reader is left.
  void Clear(BlockArena& arena);
  size_t MemoryBytes() const;

 private:
  // Lines being filled in a scratch buffer of this thread.
  struct Rebuild {
    explicit Rebuild(uint32_t lines);
    void Insert(uint64_t hash, uint32_t row);
    uint32_t num_lines;
    IndexLine* lines;
  };

  uint32_t LinesFor(uint32_t entries, double phase) const;
  void Replace(const Rebuild& rebuild, double phase, BlockArena& arena);

  std::atomic<View*> view_{nullptr};
  uint32_t size_ = 0;
  uint32_t limit_ = 0;
  std::vector<View*> retired_;  // smaller views that a reader may still hold; about as large together as the current one
};

}  // namespace monolith
