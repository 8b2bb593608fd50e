// Looks rows up without locks.
//
// Blocks of rows are found (table/row_finder.h) and copied; then the reader checks that no writer touched their buckets meanwhile, and
// repeats under the lock the few ids for which one did. Used by one thread; must not outlive the locks and tables it reads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

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

  // The rows of `ids` in one table, end to end, as Read() would; the common case, with everything that is the same for all ids at hand.
  int64_t ReadTable(const Table& table, std::span<const int64_t> ids, float* weights, uint32_t* hints);

  // Reads wish_of(i) for every i in [first, last) and, if `hints` is not null, puts the row of i, or kNoRow, into hints[i]. Returns how
  // many of the ids were there.
  template <typename WishOf>
  int64_t Read(int64_t first, int64_t last, uint32_t* hints, WishOf&& wish_of) {
    int64_t hits = 0;
    // Block n is filled in round n and taken in round n + 3: its lines come meanwhile, then its rows.
    const int64_t num_blocks = (last - first + RowFinder::kBlock - 1) / RowFinder::kBlock;
    for (int64_t round = 0; round < num_blocks + kRounds; ++round) {
      const int64_t taken = round - kRounds;
      if (taken >= 0) Take(At(taken));
      if (round < num_blocks) Fill(first + round * RowFinder::kBlock, last, wish_of, At(round));
      ReadFence();  // between a block's versions and its reading, and between its reading and the second look at its versions
      if (taken >= 0) {
        hits += Check(At(taken));
        const RowFinder& finder = At(taken).finder;
        if (hints != nullptr) std::copy_n(finder.rows, finder.count, hints + first + taken * RowFinder::kBlock);
      }
      if (const int64_t asked = round - 1; asked >= 0 && asked < num_blocks) {
        At(asked).finder.AskForRows(RowFinder::Purpose::kReading);
      }
      if (round < num_blocks) At(round).finder.AskForLines();
    }
    return hits;
  }

 private:
  static constexpr int64_t kRounds = 3;
  static constexpr int kBlockOfTable = 32;

  struct Block {
    RowFinder finder;
    float* weights[RowFinder::kBlock];
    uint32_t versions[RowFinder::kBlock];
  };

  Block& At(int64_t number) { return blocks_[number % (kRounds + 1)]; }

  template <typename WishOf>
  void Fill(int64_t begin, int64_t last, WishOf&& wish_of, Block& block) {
    RowFinder& finder = block.finder;
    finder.count = static_cast<int>(std::min<int64_t>(RowFinder::kBlock, last - begin));
    for (int i = 0; i < finder.count; ++i) {
      const RowWish wish = wish_of(begin + i);
      finder.ids[i] = wish.id;
      finder.hashes[i] = HashId(wish.id);
      finder.tables[i] = wish.table;
      block.weights[i] = wish.weights;
      block.versions[i] = locks_[BucketOfHash(finder.hashes[i])].Version();
    }
  }

  int64_t ReadBlockOfTable(const Table& table, const int64_t* ids, float* weights, uint32_t* hints);
  // Under the lock: an id that a writer disturbed, or that was not where it should be.
  uint32_t ReadAgain(const Table& table, int64_t id, uint64_t hash, float* weights);
  void Take(Block& block) const;
  // Repeats what a writer disturbed; returns how many of the block's ids were there.
  int64_t Check(Block& block);
  void ReadLocked(Block& block, int i);
  void TakeRow(Block& block, int i) const;

  BucketLock* const locks_;
  const int64_t step_;
  Block blocks_[kRounds + 1];
};

}  // namespace monolith
