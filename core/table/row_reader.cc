#include "table/row_reader.h"

#include <bit>

#include "table/row_copy.h"

namespace monolith {
namespace {

alignas(64) constexpr IndexLine kNoLine{};

}  // namespace

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

int64_t RowReader::ReadTable(const Table& table, std::span<const int64_t> ids, float* weights, uint32_t* hints) {
  const int dim = table.spec.dim();
  const auto wish_of = [&](int64_t i) { return RowWish{&table, ids[i], weights + i * dim}; };
  const auto count = static_cast<int64_t>(ids.size());
  if (kReadersLock || !table.spec.reads_raw() || count < kBlockOfTable) return Read(0, count, hints, wish_of);
  int64_t hits = 0;
  int64_t done = 0;
  for (; done + kBlockOfTable <= count; done += kBlockOfTable) {
    hits += ReadBlockOfTable(table, ids.data() + done, weights + done * dim, hints == nullptr ? nullptr : hints + done);
  }
  return hits + Read(done, count, hints, wish_of);
}

int64_t RowReader::ReadBlockOfTable(const Table& table, const int64_t* ids, float* weights, uint32_t* hints) {
  const RecordPool& pool = table.rows;
  const IndexHead* heads = table.heads.get();
  const int dim = table.spec.dim();
  uint64_t hashes[kBlockOfTable];
  const IndexLine* lines[kBlockOfTable];
  const std::byte* records[kBlockOfTable];
  uint32_t rows[kBlockOfTable];
  uint32_t versions[kBlockOfTable];
  for (int i = 0; i < kBlockOfTable; ++i) {
    const uint64_t hash = HashId(ids[i]);
    hashes[i] = hash;
    versions[i] = locks_[BucketOfHash(hash)].Version();
  }
  ReadFence();  // the versions were read before everything that follows
  for (int i = 0; i < kBlockOfTable; ++i) {
    const IndexShape shape = heads[BucketOfHash(hashes[i])].shape();
    lines[i] = shape.num_lines == 0 ? &kNoLine : shape.Line(shape.HomeOf(hashes[i]));
    __builtin_prefetch(lines[i]);
  }
  for (int i = 0; i < kBlockOfTable; ++i) {
    const uint64_t matches = MatchTags(*lines[i], RowIndex::TagOf(hashes[i]));
    rows[i] = matches != 0 ? lines[i]->rows[FirstMatch(matches)] : 0;
    records[i] = pool.At(rows[i]);
    __builtin_prefetch(records[i]);
    __builtin_prefetch(records[i] + 64);
  }
  uint64_t missed = 0;
  for (int i = 0; i < kBlockOfTable; ++i) {
    const std::byte* record = records[i];
    if (record != nullptr && HeaderOf(record)->key == ids[i] && IsLive(*HeaderOf(record))) [[likely]] {
      CopyFloats(weights + static_cast<int64_t>(i) * dim, reinterpret_cast<const float*>(PayloadOf(record)), dim);
    } else {
      missed |= uint64_t{1} << i;
    }
  }
  ReadFence();  // and everything was read before the versions are looked at again
  for (int i = 0; i < kBlockOfTable; ++i) {
    const uint32_t version = locks_[BucketOfHash(hashes[i])].Version();
    missed |= static_cast<uint64_t>(version != versions[i] || !BucketLock::IsStable(version)) << i;
  }
  int64_t hits = kBlockOfTable;
  for (; missed != 0; missed &= missed - 1) {
    const int i = std::countr_zero(missed);
    rows[i] = ReadAgain(table, ids[i], hashes[i], weights + static_cast<int64_t>(i) * dim);
    hits -= rows[i] == kNoRow;
  }
  if (hints != nullptr) std::copy_n(rows, kBlockOfTable, hints);
  return hits;
}

uint32_t RowReader::ReadAgain(const Table& table, int64_t id, uint64_t hash, float* weights) {
  const uint32_t bucket = BucketOfHash(hash);
  BucketGuard guard(locks_[bucket], Access::kReads);
  const uint32_t row = table.shards[bucket].Find(table.rows, hash, id);
  if (row == kNoRow) {
    ZeroFloats(weights, table.spec.dim());
  } else {
    CopyFloats(weights, reinterpret_cast<const float*>(PayloadOf(table.rows.AtAllocated(row))), table.spec.dim());
  }
  return row;
}

}  // namespace monolith
