// The short way to the rows of one table, for a reader beside whom nobody writes: the usual case of every step, and nothing else.
//
// An id takes three steps, kApart ids from one to the next: its line of the index is asked for; the line is matched and the row it points
// to is asked for; the row is copied. On a Neoverse N1 a request whose page has to be looked up holds back whatever does not fit the
// reorder buffer behind it, so what counts is how few instructions lie between one request and the next. Ids that are not found at once
// are left over for the long way (table/row_reader.h). Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/prefetch.h"
#include "table/group.h"
#include "table/row_copy.h"

namespace monolith {

template <int kDim>
class QuietLane {
 public:
  static constexpr int64_t kApart = 8;
  static constexpr int64_t kLeast = 2 * kApart;

  explicit QuietLane(const Table& table) : heads_(table.heads.get()), rows_(table.rows.view()) {}

  // False when most ids would be left over, as judged by the bucket of one of them.
  bool Suits(int64_t id) const {
    constexpr uint32_t kLarge = 2 * IndexShape::kSegmentLines;  // then the other buckets have whole segments, too
    return rows_.At(0) != nullptr && heads_[BucketOfHash(HashId(id))].shape().num_lines >= kLarge;
  }

  // Copies the weights of ids[i] to weights + i * kDim, and its row to hints[i] if kHinted; writes the places of the ids that are left over,
  // ascending, to `left`, and returns how many. Whatever a writer does meanwhile, it reads only memory that is there: segments of an
  // index stay, and hold only numbers of rows that were allocated once. REQUIRES: count >= kLeast, Suits().
  template <bool kHinted>
  [[gnu::noinline]] int64_t Read(const int64_t* ids, int64_t count, float* weights, uint32_t* hints, int32_t* left) const {
    Slot slots[kSlots];
    int64_t num_left = 0;
    const auto slot_of = [&slots](int64_t i) -> Slot& { return slots[static_cast<uint32_t>(i) % kSlots]; };
    const auto ask = [&](int64_t i) __attribute__((always_inline)) { AskForLine(ids[i], slot_of(i)); };
    const auto guess = [&](int64_t i) __attribute__((always_inline)) { AskForRow(slot_of(i)); };
    const auto copy = [&](int64_t i) __attribute__((always_inline)) {
      const Slot& slot = slot_of(i);
      if (HeaderOf(slot.record)->key != ids[i] || !IsLive(*HeaderOf(slot.record))) [[unlikely]] {
        left[num_left++] = static_cast<int32_t>(i);
        return;
      }
      CopyPiece<kDim>(weights + i * kDim, reinterpret_cast<const float*>(PayloadOf(slot.record)));
      if constexpr (kHinted) hints[i] = slot.row;
    };
    for (int64_t i = 0; i < 2 * kApart; ++i) ask(i);
    for (int64_t i = 0; i < kApart; ++i) guess(i);
    int64_t i = 0;
    for (; i < count - 2 * kApart; ++i) {
      ask(i + 2 * kApart);
      guess(i + kApart);
      copy(i);
    }
    for (; i < count - kApart; ++i) {
      guess(i + kApart);
      copy(i);
    }
    for (; i < count; ++i) copy(i);
    return num_left;
  }

 private:
  static constexpr uint32_t kSlots = 32;
  static_assert(2 * kApart < kSlots);

  struct Slot {
    const IndexLine* line;
    uint64_t hash;
    const std::byte* record;
    uint32_t row;
  };

  [[gnu::always_inline]] void AskForLine(int64_t id, Slot& slot) const {
    const uint64_t hash = HashId(id);
    const IndexLine* line = heads_[BucketOfHash(hash)].HomeInWholeSegment(hash);
    Prefetch(line);
    slot.line = line;
    slot.hash = hash;
  }

  [[gnu::always_inline]] void AskForRow(Slot& slot) const {
    const uint64_t matches = MatchTags(*slot.line, RowIndex::TagOf(slot.hash));
    // Without a match the first row will do, whose id is another.
    const uint32_t row = slot.line->rows[matches != 0 ? FirstMatch(matches) : 0];
    const std::byte* record = rows_.AtAllocated(row);
    Prefetch(record);
    Prefetch(record + kCacheLine);
    constexpr size_t kBytes = sizeof(RowHeader) + sizeof(float) * kDim;
    if constexpr (kBytes > 2 * kCacheLine) PrefetchLines(record + 2 * kCacheLine, kBytes - 2 * kCacheLine);
    slot.record = record;
    slot.row = row;
  }

  const IndexHead* const heads_;
  const RecordPool::View rows_;
};

}  // namespace monolith
