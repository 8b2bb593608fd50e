#include "table/row_reader.h"

#include "table/row_copy.h"

namespace monolith {

void RowReader::Begin(Block& block) {
  if constexpr (kReadersLock) return;
  RowFinder& finder = block.finder;
  for (int i = 0; i < finder.count; ++i) block.versions[i] = locks_[BucketOfHash(finder.hashes[i])].Version();
  ReadFence();  // the versions were read before everything that follows
  finder.AskForLines();
}

int64_t RowReader::Finish(Block& block) {
  RowFinder& finder = block.finder;
  if constexpr (kReadersLock) {
    for (int i = 0; i < finder.count; ++i) ReadLocked(block, i);
  } else {
    for (int i = 0; i < finder.count; ++i) finder.rows[i] = finder.Settle(i);
    for (int i = 0; i < finder.count; ++i) Take(block, i);
    ReadFence();  // and everything was read before the versions are looked at again
    for (int i = 0; i < finder.count; ++i) {
      const uint32_t version = locks_[BucketOfHash(finder.hashes[i])].Version();
      if (version != block.versions[i] || !BucketLock::IsStable(version)) [[unlikely]] ReadLocked(block, i);
    }
  }
  int64_t hits = 0;
  for (int i = 0; i < finder.count; ++i) hits += finder.rows[i] != kNoRow;
  return hits;
}

void RowReader::ReadLocked(Block& block, int i) {
  RowFinder& finder = block.finder;
  const uint32_t bucket = BucketOfHash(finder.hashes[i]);
  const Table& table = *finder.tables[i];
  BucketGuard guard(locks_[bucket], Access::kReads);
  finder.rows[i] = table.shards[bucket].Find(table.rows, finder.hashes[i], finder.ids[i]);
  Take(block, i);
}

void RowReader::Take(Block& block, int i) {
  const Table& table = *block.finder.tables[i];
  const uint32_t row = block.finder.rows[i];
  if (row == kNoRow) return ZeroFloats(block.weights[i], table.spec.dim());
  const std::byte* payload = PayloadOf(table.rows.AtAllocated(row));
  if (table.spec.reads_raw()) {
    CopyFloats(block.weights[i], reinterpret_cast<const float*>(payload), table.spec.dim());
  } else {
    table.spec.ReadWeights(payload, block.weights[i], step_);
  }
}

}  // namespace monolith
