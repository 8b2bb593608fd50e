// Looks rows up without locks, many at a time.
//
// Ids are collected into a block; Flush() takes the whole block through each stage (index line, row, copy), so that the cache
// misses of one stage overlap, then checks that no writer touched the buckets meanwhile and repeats under the lock the few ids for
// which one did. Used by one thread; must not outlive the buckets and tables it reads.
#pragma once

#include <cstdint>

#include "table/group.h"

namespace monolith {

class RowReader {
 public:
  static constexpr int kBlock = 64;

  RowReader(Bucket* buckets, int64_t step) : buckets_(buckets), step_(step) {}
  RowReader(const RowReader&) = delete;
  RowReader& operator=(const RowReader&) = delete;

  // `weights` takes table.spec.dim() floats, zeros for an id that is not there; `hint`, if given, its row or kNoRow. Both are
  // written by Flush() at the latest, which happens by itself when the block is full.
  void Add(const Table& table, int64_t id, float* weights, uint32_t* hint) {
    Probe& probe = probes_[count_];
    probe.table = &table;
    probe.id = id;
    probe.hash = HashId(id);
    probe.weights = weights;
    probe.hint = hint;
    if constexpr (!kReadersLock) {
      const uint32_t bucket = BucketOfHash(probe.hash);
      probe.version = buckets_[bucket].lock.Version();
      probe.view = table.shards[bucket].index.view();
    }
    if (++count_ == kBlock) Flush();
  }

  // REQUIRES: called before the destructor if anything was added.
  void Flush();
  int64_t hits() const { return hits_; }

 private:
  struct Probe {
    const Table* table;
    int64_t id;
    uint64_t hash;
    float* weights;
    uint32_t* hint;
    const RowIndex::View* view;
    const IndexLine* line;
    uint32_t version;
    uint32_t row;
  };

  void FindLines();
  void GuessRows();
  void CopyRows();
  void RepeatDisturbed();
  void ReadLocked(Probe& probe);
  uint32_t SettleGuess(const Probe& probe) const;
  void Take(const Probe& probe) const;

  Bucket* const buckets_;
  const int64_t step_;
  int count_ = 0;
  int64_t hits_ = 0;
  Probe probes_[kBlock];
};

}  // namespace monolith
