// The short way to the rows of one table, for a reader beside whom nobody writes: the usual case of every step, and nothing else.
//
// Blocks of ids take three steps, and three blocks are under way: the lines of the index of one are asked for; those of the one before
// are matched; its rows are asked for, and meanwhile those of the one before that are copied. On a Neoverse N1 a request whose page has to
// be looked up holds back whatever does not fit the reorder buffer behind it, so what counts is how few instructions lie between one
// request and the next; hence short loops, without branches that cannot be foreseen. What is not found at the first guess, one id in 15,
// gets a second one; ids that are not found then are left over for the long way (table/row_reader.h). Used by one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/prefetch.h"
#include "table/group.h"
#include "table/row_copy.h"

namespace monolith {

template <int kDim>
class QuietLane {
 public:
  static constexpr int64_t kBlock = 32;

  explicit QuietLane(const Table& table) : index_(table.index.view()), rows_(table.rows.view()) {}

  // False when most ids would be left over, as judged by the bucket of one of them.
  bool Suits(int64_t id) const {
    constexpr uint32_t kLarge = 2 * kPlateLines;  // then the indexes of the other buckets are on plates, too
    return rows_.At(0) != nullptr && index_.NumLines(BucketOf(id)) >= kLarge;
  }

  // Copies the weights of ids[i] to weights + i * kDim, and its row to hints[i] if kHinted; writes the places of the ids that are left
  // over, ascending, to `left`, and returns how many; what was copied for those is of no use. Whatever a writer does meanwhile, it
  // reads only memory that is there: plates of an index stay, and hold only numbers of rows that were allocated once.
  // REQUIRES: count is a positive multiple of kBlock; Suits(); `left` has room for `count`.
  template <bool kHinted>
  int64_t Read(const int64_t* ids, int64_t count, float* weights, uint32_t* hints, int32_t* left) const {
    const int64_t num_left = ReadFirst<kHinted>(ids, count, weights, hints, left);
    return ReadSecond<kHinted>(ids, left, num_left, weights, hints);
  }

 private:
  template <bool kHinted>
  [[gnu::noinline]] int64_t ReadFirst(const int64_t* ids, int64_t count, float* weights, uint32_t* hints, int32_t* left) const {
    const QuietLane lane(*this);  // which nothing written here can change, so it stays in registers
    Block blocks[2];
    Block *now = &blocks[0], *next = &blocks[1];
    int64_t num_left = 0;
    const auto copy = [&](const Block& block, int64_t k, int64_t i) __attribute__((always_inline)) {
      const std::byte* record = block.records[k];
      CopyPiece<kDim>(weights + i * kDim, reinterpret_cast<const float*>(PayloadOf(record)));
      if constexpr (kHinted) hints[i] = block.rows[k];
      left[num_left] = static_cast<int32_t>(i);
      num_left += !IsRowOf(record, ids[i]);
    };
    lane.AskForLines(ids, *now);
    lane.MatchLines<kHinted>(*now);
    for (int64_t k = 0; k < kBlock; ++k) AskForRow(now->records[k]);
    if (count > kBlock) lane.AskForLines(ids + kBlock, *next);
    int64_t first = 0;
    for (; first + kBlock < count; first += kBlock) {
      lane.MatchLines<kHinted>(*next);
      // The lines of the block after next; the present block needs its own no more.
      if (first + 2 * kBlock < count) lane.AskForLines(ids + first + 2 * kBlock, *now);
      for (int64_t k = 0; k < kBlock; ++k) {
        AskForRow(next->records[k]);
        copy(*now, k, first + k);
      }
      std::swap(now, next);
    }
    for (int64_t k = 0; k < kBlock; ++k) copy(*now, k, first + k);
    return num_left;
  }

  // As ReadFirst(), for the ids at left[0 .. count): the second row with the tag in the home line or, if there is none, the first one in
  // the two lines after it. Those that are still left over stay in `left`.
  template <bool kHinted>
  [[gnu::noinline]] int64_t ReadSecond(const int64_t* ids, int32_t* left, int64_t count, float* weights, uint32_t* hints) const {
    Block block;
    uint64_t matches[kBlock];
    int64_t num_left = 0;
    for (int64_t first = 0; first < count; first += kBlock) {
      const int64_t size = std::min(kBlock, count - first);
      for (int64_t k = 0; k < size; ++k) {
        block.hashes[k] = HashId(ids[left[first + k]]);
        const IndexLine* home = index_.HomeOnPlate(block.hashes[k]);
        const uint64_t all = MatchTags(*home, RowIndex::TagOf(block.hashes[k])), others = all & (all - 1);
        block.lines[k] = home + (int{others == 0} & GoesOn(*home));
        matches[k] = others;
        Prefetch(block.lines[k]);
        Prefetch(block.lines[k] + 1);
      }
      for (int64_t k = 0; k < size; ++k) {
        const uint8_t tag = RowIndex::TagOf(block.hashes[k]);
        const IndexLine* line = block.lines[k];
        uint64_t found = matches[k] != 0 ? matches[k] : MatchTags(*line, tag);
        if ((int{found == 0} & GoesOn(*line)) != 0) found = MatchTags(*++line, tag);
        block.rows[k] = line->rows[found != 0 ? FirstMatch(found) : 0];
        block.records[k] = rows_.AtAllocated(block.rows[k]);
        AskForRow(block.records[k]);
      }
      for (int64_t k = 0; k < size; ++k) {
        const int32_t i = left[first + k];
        const std::byte* record = block.records[k];
        CopyPiece<kDim>(weights + int64_t{i} * kDim, reinterpret_cast<const float*>(PayloadOf(record)));
        if constexpr (kHinted) hints[i] = block.rows[k];
        left[num_left] = i;
        num_left += !IsRowOf(record, ids[i]);
      }
    }
    return num_left;
  }

  // Whether entries went past a line into the one behind it.
  static int GoesOn(const IndexLine& line) { return int{line.passed != 0} & int{!IndexMemory::IsLastOfPlate(&line)}; }

  struct Block {
    uint64_t hashes[kBlock];
    const IndexLine* lines[kBlock];
    const std::byte* records[kBlock];
    uint32_t rows[kBlock];
  };

  [[gnu::always_inline]] void AskForLines(const int64_t* ids, Block& block) const {
    for (int64_t k = 0; k < kBlock; ++k) {
      const uint64_t hash = HashId(ids[k]);
      const IndexLine* line = index_.HomeOnPlate(hash);
      Prefetch(line);
      block.hashes[k] = hash;
      block.lines[k] = line;
    }
  }

  template <bool kHinted>
  [[gnu::always_inline]] void MatchLines(Block& block) const {
    for (int64_t k = 0; k < kBlock; ++k) {
      const uint64_t matches = MatchTags(*block.lines[k], RowIndex::TagOf(block.hashes[k]));
      // Without a match the first row will do, whose id is another.
      const uint32_t row = block.lines[k]->rows[matches != 0 ? FirstMatch(matches) : 0];
      block.records[k] = rows_.AtAllocated(row);
      if constexpr (kHinted) block.rows[k] = row;
    }
  }

  [[gnu::always_inline]] static void AskForRow(const std::byte* record) {
    Prefetch(record);
    Prefetch(record + kCacheLine);
    constexpr size_t kBytes = sizeof(RowHeader) + sizeof(float) * kDim;
    if constexpr (kBytes > 2 * kCacheLine) PrefetchLines(record + 2 * kCacheLine, kBytes - 2 * kCacheLine);
  }

  IndexMemory::View index_;
  RecordPool::View rows_;
};

}  // namespace monolith
