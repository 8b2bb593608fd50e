#include "table/row_reader.h"

#include "table/row_copy.h"

namespace monolith {

void RowReader::Take(Block& block) const {
  if constexpr (kReadersLock) return;
  RowFinder& finder = block.finder;
  for (int i = 0; i < finder.count; ++i) {
    finder.rows[i] = finder.Settle(i);
    TakeRow(block, i);
  }
}

int64_t RowReader::Check(Block& block) {
  const RowFinder& finder = block.finder;
  int64_t hits = 0;
  for (int i = 0; i < finder.count; ++i) {
    const uint32_t version = locks_[BucketOfHash(finder.hashes[i])].Version();
    const bool disturbed = version != block.versions[i] || !BucketLock::IsStable(version);
    if (kReadersLock || disturbed) [[unlikely]] ReadLocked(block, i);
    hits += finder.rows[i] != kNoRow;
  }
  return hits;
}

void RowReader::ReadLocked(Block& block, int i) {
  RowFinder& finder = block.finder;
  const uint32_t bucket = BucketOfHash(finder.hashes[i]);
  const Table& table = *finder.tables[i];
  BucketGuard guard(locks_[bucket], Access::kReads);
  finder.rows[i] = table.shards[bucket].Find(table.rows, finder.hashes[i], finder.ids[i]);
  TakeRow(block, i);
}

void RowReader::TakeRow(Block& block, int i) const {
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
