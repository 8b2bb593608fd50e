// From the hash of an id to the number of its row, for one table in one bucket.
//
// Lines of one cache line hold 12 eight-bit tags, 12 row numbers and a count of entries that had to go past the line. The key
// itself lives in the row, so a tag match is only a candidate: 1 in 255 of other ids' entries has the same tag. An entry sits in its home line or, if that was full, in the first
// later line with room; a search ends at the first line that nothing went past.
//
// All changes need the bucket's lock. Readers without it may take the shape of an index from its head and search that: lines may be
// reused meanwhile, but are not unmapped before Clear().
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

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

// Which entries of a line have a tag, as a word with one bit for each of them, `kMatchStride` apart. Free of branches: which entry it
// is cannot be predicted. The portable form is always compiled, and compared with the other by row_index_test.cc.
inline uint64_t MatchTagsPortable(const IndexLine& line, uint8_t tag) {
  constexpr uint64_t kOnes = 0x0101010101010101ull, kLows = 0x7f7f7f7f7f7f7f7full;
  constexpr uint64_t kGather = 0x0002040810204081ull;  // brings the top bits of eight bytes together in the top byte
  const auto zero_bytes = [](uint64_t word) { return ~(((word & kLows) + kLows) | word | kLows); };
  uint64_t low;
  uint32_t high;
  std::memcpy(&low, line.tags, 8);
  std::memcpy(&high, line.tags + 8, 4);
  const uint64_t found_low = zero_bytes(low ^ kOnes * tag);
  const uint64_t found_high = zero_bytes((uint64_t{high} | ~uint64_t{0} << 32) ^ (kOnes * tag & 0xffffffffu)) & 0xffffffffu;
  return (found_low * kGather) >> 56 | ((found_high * kGather) >> 56) << 8;
}

#if defined(__aarch64__)
inline constexpr int kMatchStride = 4;
inline uint64_t MatchTags(const IndexLine& line, uint8_t tag) {
  const uint8x16_t equal = vceqq_u8(vld1q_u8(line.tags), vdupq_n_u8(tag));  // reads `passed` and `unused` too
  const uint8x8_t nibbles = vshrn_n_u16(vreinterpretq_u16_u8(equal), 4);
  return vget_lane_u64(vreinterpret_u64_u8(nibbles), 0) & 0x0000888888888888ull;
}
#elif defined(__SSE2__)
inline constexpr int kMatchStride = 1;
inline uint64_t MatchTags(const IndexLine& line, uint8_t tag) {
  const __m128i tags = _mm_load_si128(reinterpret_cast<const __m128i*>(line.tags));  // reads `passed` and `unused` too
  return static_cast<uint64_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(tags, _mm_set1_epi8(static_cast<char>(tag)))) & 0xfff);
}
#else
inline constexpr int kMatchStride = 1;
inline uint64_t MatchTags(const IndexLine& line, uint8_t tag) { return MatchTagsPortable(line, tag); }
#endif

// REQUIRES: matches != 0.
inline int FirstMatch(uint64_t matches) { return std::countr_zero(matches) / kMatchStride; }

// The lines of an index at one moment, in segments of 32: growth adds segments and moves none. An index of up to 32 lines, always a
// power of two, is one segment of just that size.
struct IndexShape {
  static constexpr uint32_t kSegmentLines = 32;

  IndexLine* const* segments;
  uint32_t num_lines;  // 0 iff nothing was ever inserted

  uint32_t HomeOf(uint64_t hash) const {
    return static_cast<uint32_t>((((hash >> 20) & 0xffffffffu) * num_lines) >> 32);
  }
  // Which segment holds a line, and which line of the segment it is.
  static uint32_t SegmentOf(uint32_t line) { return line / kSegmentLines; }
  static uint32_t PlaceOf(uint32_t line) { return line % kSegmentLines; }
  IndexLine* Line(uint32_t line) const { return segments[SegmentOf(line)] + PlaceOf(line); }
  uint32_t Next(uint32_t line) const { return line + 1 == num_lines ? 0 : line + 1; }
};

// What a search needs first, kept together for all buckets of a table so that it stays in the nearest cache. The shape is one word,
// so that a reader never sees half of a change: 48 bits of address and a code for the number of lines, which is a multiple of 32 from 32
// on.
class IndexHead {
 public:
  IndexShape shape() const {
    const uint64_t word = shape_.load(std::memory_order_relaxed);
    const auto code = static_cast<uint32_t>(word >> 48);
    const uint32_t num_lines = code <= IndexShape::kSegmentLines ? code : (code - kCodeOffset) * IndexShape::kSegmentLines;
    return {reinterpret_cast<IndexLine* const*>(word & kAddress), num_lines};
  }
  // The home line of a hash, or an empty one if the index has no whole segment yet.
  const IndexLine* HomeInWholeSegment(uint64_t hash) const {
    const uint64_t word = shape_.load(std::memory_order_relaxed);
    const auto code = static_cast<uint32_t>(word >> 48);
    if (code < IndexShape::kSegmentLines) [[unlikely]] return &kEmptyLine;
    const IndexShape shape{reinterpret_cast<IndexLine* const*>(word & kAddress), (code - kCodeOffset) * IndexShape::kSegmentLines};
    return shape.Line(shape.HomeOf(hash));
  }
  // REQUIRES: num_lines is 0 or one that RowIndex rounds to.
  void SetShape(const IndexShape& shape);
  uint32_t size() const { return size_.load(std::memory_order_relaxed); }
  void SetSize(uint32_t size) { size_.store(size, std::memory_order_relaxed); }

 private:
  static const IndexLine kEmptyLine;
  static constexpr uint64_t kAddress = (uint64_t{1} << 48) - 1;
  static constexpr uint32_t kCodeOffset = IndexShape::kSegmentLines - 1;  // 32 lines are code 32, 64 are 33, 96 are 34 ...

  std::atomic<uint64_t> shape_{0};
  std::atomic<uint32_t> size_{0};  // entries
};

class RowIndex {
 public:
  // The bucket takes the top bits of a hash, the home line middle ones, the tag the lowest: all of them independent.
  static uint8_t TagOf(uint64_t hash) {
    const auto tag = static_cast<uint8_t>(hash);
    return tag == 0 ? 1 : tag;
  }

  RowIndex() = default;
  ~RowIndex();
  RowIndex(const RowIndex&) = delete;
  RowIndex& operator=(const RowIndex&) = delete;

  // Must come before everything else; the head outlives the index.
  void UseHead(IndexHead* head) { head_ = head; }

  IndexShape shape() const { return head_->shape(); }
  uint32_t size() const { return head_->size(); }

  // The row for which is_key(row) holds among those inserted under `hash`; kNoRow if none.
  template <typename IsKey>
  static uint32_t Find(const IndexShape& shape, uint64_t hash, IsKey&& is_key) {
    if (shape.num_lines == 0) return kNoRow;
    const uint8_t tag = TagOf(hash);
    uint32_t at = shape.HomeOf(hash);
    for (uint32_t seen = 0; seen < shape.num_lines; ++seen, at = shape.Next(at)) {
      const IndexLine& line = *shape.Line(at);
      for (uint64_t matches = MatchTags(line, tag); matches != 0; matches &= matches - 1) {
        const uint32_t row = line.rows[FirstMatch(matches)];
        if (is_key(row)) return row;
      }
      if (line.passed == 0) break;
    }
    return kNoRow;
  }

  // True iff one more entry needs Grow() first.
  bool IsFull() const { return size() >= limit_; }
  // Makes room for at least `entries`, and for growth beyond them. for_each(add) must call add(hash, row) for every entry. `phase` in
  // [0, 1) spreads the growth of sibling indexes over time.
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
    uint8_t* used;  // entries of each line: looking for an empty place right after a write to the line would wait for it
  };

  uint32_t LinesFor(uint32_t entries, double phase) const;
  void Replace(const Rebuild& rebuild, double phase, BlockArena& arena);

  void FreeSegmentLists();

  IndexHead* head_ = nullptr;
  uint32_t limit_ = 0;
  std::vector<IndexLine* const*> retired_;  // shorter lists of segments that a reader may still hold
};

}  // namespace monolith
