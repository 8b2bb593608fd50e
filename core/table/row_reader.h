// Looks rows up without locks.
//
// Blocks of rows are found (table/row_finder.h) and copied; then the reader checks that no writer touched their buckets meanwhile, and
// repeats under the lock the few ids for which one did. Used by one thread; must not outlive the locks and tables it reads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "table/group.h"
#include "table/row_finder.h"

namespace monolith {

// What to read and where to put it.
struct RowWish {
  const Table* table;
  int64_t id;
  float* weights;  // takes table->spec.dim() floats, zeros for an id that is not there
};

class RowReader {
 public:
  RowReader(BucketLock* locks, int64_t step) : locks_(locks), step_(step) {}
  RowReader(const RowReader&) = delete;
  RowReader& operator=(const RowReader&) = delete;

  // Reads wish_of(i) for every i in [first, last) and, if `hints` is not null, puts the row of i, or kNoRow, into hints[i]. Returns how
  // many of the ids were there.
  template <typename WishOf>
  int64_t Read(int64_t first, int64_t last, uint32_t* hints, WishOf&& wish_of) {
    int64_t hits = 0;
    Block* current = &blocks_[0];
    Block* next = &blocks_[1];
    current->finder.count = 0;
    for (int64_t begin = first; begin < last + RowFinder::kBlock; begin += RowFinder::kBlock) {
      next->finder.count = static_cast<int>(std::clamp<int64_t>(last - begin, 0, RowFinder::kBlock));
      for (int i = 0; i < next->finder.count; ++i) {
        const RowWish wish = wish_of(begin + i);
        next->finder.ids[i] = wish.id;
        next->finder.hashes[i] = HashId(wish.id);
        next->finder.tables[i] = wish.table;
        next->weights[i] = wish.weights;
      }
      Begin(*next);
      hits += Finish(*current);
      if (hints != nullptr) std::copy_n(current->finder.rows, current->finder.count, hints + begin - RowFinder::kBlock);
      if (!kReadersLock && next->finder.count > 0) next->finder.AskForRows(RowFinder::Purpose::kReading);
      std::swap(current, next);
    }
    return hits;
  }

 private:
  struct Block {
    RowFinder finder;
    float* weights[RowFinder::kBlock];
    uint32_t versions[RowFinder::kBlock];
  };

  void Begin(Block& block);
  // Takes the rows and makes sure of them; returns how many there were.
  int64_t Finish(Block& block);
  void ReadLocked(Block& block, int i);
  void Take(Block& block, int i);

  BucketLock* const locks_;
  const int64_t step_;
  Block blocks_[2];
};

}  // namespace monolith
