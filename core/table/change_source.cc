#include "table/change_source.h"

#include <algorithm>

#include "table/block_writer.h"

namespace monolith {
namespace {

constexpr uint32_t kRowsPerHold = 64;
constexpr int kShardsPerCall = 16;  // without changes: bounds how long an exclusive call waits

}  // namespace

bool ChangeSource::Next(std::string* block) {
  while (bucket_ < end_) {
    if (Rows(block) || Advance(block)) return true;
  }
  return false;
}

uint32_t ChangeSource::First() const {
  group_.CheckSince(since_, group_.Floor());
  return group_.FirstRowEpochAfter(since_);
}

bool ChangeSource::ToNextShard() {
  if (has_begun_ && ++table_ == group_.tables_.size()) {
    table_ = 0;
    ++bucket_;
  }
  has_begun_ = true;
  return bucket_ < end_;
}

bool ChangeSource::Advance(std::string* block) {
  Gate::Shared call(group_.gate_);
  const uint32_t first = First();
  for (int looked_at = 0; looked_at < kShardsPerCall && ToNextShard(); ++looked_at) {
    BucketGuard guard(group_.locks_[bucket_], Access::kReads);
    rows_.Begin(shard(), first, state_ ? table().rows.record_bytes() : table().spec.read_bytes());
    const RemovalRange wanted{first, UINT32_MAX, group_.epoch_base_};
    if (BuildTombstoneBlock(table(), bucket_, group_.buckets_[bucket_].tombstones, wanted, group_.Now(), block))
      return true;
    if (!rows_.AtEnd()) return false;
  }
  return false;
}

bool ChangeSource::Rows(std::string* block) {
  if (rows_.AtEnd()) return false;
  Gate::Shared call(group_.gate_);
  const uint32_t first = First();
  BlockWriter writer(table(), bucket_, state_, group_.Now(), MostRows(), std::move(*block));
  while (!rows_.AtEnd() && writer.count() + kRowsPerHold <= writer.max_rows()) {
    BucketGuard guard(group_.locks_[bucket_], Access::kReads);
    rows_.Step(shard(), table().rows, kRowsPerHold, [&](const std::byte* record) {
      if (EpochOf(*HeaderOf(record)) >= first) writer.Add(record);
    });
  }
  const bool any = writer.count() > 0;
  *block = writer.Finish();
  return any;
}

// Room for a full block, or for all rows of a smaller shard.
uint32_t ChangeSource::MostRows() {
  BucketGuard guard(group_.locks_[bucket_], Access::kReads);
  return std::min(BlockWriter::kRowsPerBlock, rows_.MostLeft(shard()) + 2 * kRowsPerHold);
}

}  // namespace monolith
