// Fast lookups in one table while no call writes: without locks, without validation against writers, and for the common
// case only.
//
// Blocks of ids pass through three stages, and three blocks are in flight: the index lines of one block are prefetched;
// those of the block before it are matched and its rows prefetched; meanwhile the rows of the block before that are
// copied. On a Neoverse N1 a prefetch that needs a page walk stalls every later instruction that does not fit the
// reorder buffer, so the number of instructions between two prefetches matters most; hence short loops without
// unpredictable branches. Ids that the first guess does not find, one in 20, get a second one; ids that are not found
// then are left to the general reader (table/row_reader.h), which also detects concurrent writes. Used by one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/prefetch.h"
#include "table/row_copy.h"
#include "table/table.h"

namespace monolith {

// Ids that determine their buckets, and keys that are passed with their buckets.
struct PlainKeys {
  const int64_t* ids;
  uint64_t HashOf(int64_t i) const { return HashId(ids[i]); }
};
struct BucketedKeys {
  const int64_t* ids;
  const uint16_t* buckets;
  uint64_t HashOf(int64_t i) const { return HashInBucket(buckets[i], ids[i]); }
};

template <int kDim>
class FastRowReader {
 public:
  static constexpr int64_t kBlock = 32;
  static_assert(offsetof(IndexLine, zero) == offsetof(RowHeader, meta) && !IsLive(RowHeader{}));
  static_assert(sizeof(RowHeader) + sizeof(float) * kDim <= kReadableBehindLine);

  explicit FastRowReader(const Table& table) : index_(table.index.view()), rows_(table.rows.view()) {}

  // False when most ids would be left to the general reader, as judged by the bucket of one of them.
  bool Suits(uint32_t bucket) const {
    constexpr uint32_t kLarge = 2 * kPlateLines;  // then the indexes of the other buckets are on plates, too
    return rows_.At(0) != nullptr && index_.NumLines(bucket) >= kLarge;
  }

  // Copies the weights of keys.ids[i] to weights + i * kDim, and its row to hints[i] if kHinted. Writes the positions
  // of the ids that were not found, ascending, to `left`, and returns their number; the values copied for those are
  // undefined. Whatever a concurrent writer does, only mapped memory is read: plates of an index are never unmapped,
  // and hold only numbers of rows that were allocated once. REQUIRES: count is a positive multiple of kBlock; Suits();
  // `left` has room for `count`.
  template <bool kHinted, typename Keys>
  int64_t Read(const Keys& keys, int64_t count, float* weights, uint32_t* hints, int32_t* left) const {
    const int64_t num_left = Pass<kHinted, FirstGuess>(keys, count, weights, hints, left);
    if (num_left == 0) return 0;
    int64_t padded = num_left;
    while (padded % kBlock != 0) left[padded++] = left[num_left - 1];
    int64_t still = Pass<kHinted, SecondGuess>(keys, padded, weights, hints, left);
    while (still > 1 && left[still - 1] == left[still - 2]) --still;
    return still;
  }

 private:
  // The row of the first entry of the home line that has the tag. For all ids, in order.
  struct FirstGuess {
    static int64_t PlaceOf(const int32_t*, int64_t k) { return k; }
    static uint64_t Match(const IndexLine*& line, uint8_t tag) { return MatchTags(*line, tag); }
  };

  // The row of the second such entry or, if there is none, of the first one in the following lines of the plate. For
  // the ids that the first guess did not find.
  struct SecondGuess {
    static int64_t PlaceOf(const int32_t* left, int64_t k) { return left[k]; }
    static uint64_t Match(const IndexLine*& line, uint8_t tag) {
      const uint64_t all = MatchTags(*line, tag);
      uint64_t matches = all & (all - 1);
      while (matches == 0 && line->passed != 0 && !IndexMemory::IsLastOfPlate(line)) matches = MatchTags(*++line, tag);
      return matches;
    }
  };

  template <bool kHinted, typename Guess, typename Keys>
  [[gnu::noinline]] int64_t Pass(const Keys& given, int64_t count, float* weights, uint32_t* hints,
                                 int32_t* left) const {
    const FastRowReader reader(*this);  // a copy that no write here can alias, so it stays in registers
    const Keys keys = given;
    Block blocks[2];
    Block *now = &blocks[0], *next = &blocks[1];
    int64_t num_left = 0;
    const auto copy = [&](const Block& block, int64_t k, int64_t first) __attribute__((always_inline)) {
      const int64_t i = Guess::PlaceOf(left, first + k);
      const std::byte* record = block.records[k];
      CopyPiece<kDim>(weights + i * kDim, reinterpret_cast<const float*>(PayloadOf(record)));
      if constexpr (kHinted) hints[i] = block.rows[k];
      left[num_left] = static_cast<int32_t>(i);
      num_left += !IsRowOf(record, keys.ids[i]);
    };
    reader.template AskForLines<Guess>(keys, left, 0, *now);
    reader.MatchLines<kHinted, Guess>(*now);
    for (int64_t k = 0; k < kBlock; ++k) AskForRow(now->records[k]);
    if (count > kBlock) reader.template AskForLines<Guess>(keys, left, kBlock, *next);
    int64_t first = 0;
    for (; first + kBlock < count; first += kBlock) {
      reader.MatchLines<kHinted, Guess>(*next);
      // The lines of the block after next; the current block no longer needs its own.
      if (first + 2 * kBlock < count) reader.template AskForLines<Guess>(keys, left, first + 2 * kBlock, *now);
      for (int64_t k = 0; k < kBlock; ++k) {
        AskForRow(next->records[k]);
        copy(*now, k, first);
      }
      std::swap(now, next);
    }
    for (int64_t k = 0; k < kBlock; ++k) copy(*now, k, first);
    return num_left;
  }

  struct Block {
    uint64_t hashes[kBlock];
    const IndexLine* lines[kBlock];
    const std::byte* records[kBlock];
    uint32_t rows[kBlock];
  };

  template <typename Guess, typename Keys>
  [[gnu::always_inline]] void AskForLines(const Keys& keys, const int32_t* left, int64_t first, Block& block) const {
    for (int64_t k = 0; k < kBlock; ++k) {
      const uint64_t hash = keys.HashOf(Guess::PlaceOf(left, first + k));
      const IndexLine* line = index_.HomeOnPlate(hash);
      Prefetch(line);
      block.hashes[k] = hash;
      block.lines[k] = line;
    }
  }

  template <bool kHinted, typename Guess>
  [[gnu::always_inline]] void MatchLines(Block& block) const {
    for (int64_t k = 0; k < kBlock; ++k) {
      const IndexLine* line = block.lines[k];
      const uint64_t matches = Guess::Match(line, RowIndex::TagOf(block.hashes[k]));
      const uint32_t row = line->rows[matches != 0 ? FirstMatch(matches) : 0];
      const std::byte* record = rows_.AtAllocated(row);
      // Without a match the line itself stands in for the record: it is no live row (index_line.h), and prefetching it
      // fetches the line after it, which the second guess searches.
      block.records[k] = matches != 0 ? record : reinterpret_cast<const std::byte*>(line);
      if constexpr (kHinted) block.rows[k] = row;
    }
  }

  [[gnu::always_inline]] static void AskForRow(const std::byte* record) {
    constexpr size_t kBytes = std::max(sizeof(RowHeader) + sizeof(float) * kDim, 2 * kCacheLine);
    for (size_t offset = 0; offset < kBytes; offset += kCacheLine) PrefetchFar(record + offset);
  }

  IndexMemory::View index_;
  RecordPool::View rows_;
};

}  // namespace monolith
