// Guesses the rows of a block of ids, so that their cache and address-translation misses overlap.
//
// A block goes through three steps: AskForLines() asks memory for the index lines of all ids, AskForRows() for the rows that the tags
// point to, and then the caller takes the rows. Callers keep several blocks going, the steps of one between those of the others, so
// that what one waits for comes while another works.
//
// Under the thread sanitizer nothing is asked for and nothing guessed.
// Nothing is locked: the result is a guess, and memory may be changing meanwhile (table/bucket_lock.h). Settle() turns a guess into
// the answer, exactly so under the bucket's lock; without it, iff the bucket's version has not moved. Used by one thread.
#pragma once

#include <cstdint>

#include "table/group.h"

namespace monolith {

class RowFinder {
 public:
  static constexpr int kBlock = 32;  // pages in flight must also fit the processor's first translation buffer

  // Set by the caller: `count` entries of each.
  int count = 0;
  int64_t ids[kBlock];
  uint64_t hashes[kBlock];
  const Table* tables[kBlock];

  // Filled by AskForRows(), or by the caller from hints; kNoRow = not there.
  uint32_t rows[kBlock];

  enum class Purpose { kReading, kWriting };  // how much of a row will be needed: its weights, or all of it

  void AskForLines();
  void AskForRows(Purpose purpose);
  // In place of both, when `rows` are hints.
  void AskForHintedRows(Purpose purpose) const;

  uint32_t Settle(int i) const {
    const Table& table = *tables[i];
    if (rows[i] != kNoRow && TableShard::Holds(table.rows, rows[i], ids[i])) [[likely]] return rows[i];
    return RowIndex::Find(table.heads[BucketOfHash(hashes[i])].shape(), hashes[i],
                          [&](uint32_t row) { return TableShard::Holds(table.rows, row, ids[i]); });
  }

 private:
  const IndexLine* lines_[kBlock];
};

}  // namespace monolith
