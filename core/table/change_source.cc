#include "table/change_source.h"

#include <algorithm>

#include "table/block_writer.h"

namespace monolith {
namespace {

constexpr uint32_t kRowsPerHold = 64;

}  // namespace

bool ChangeSource::Next(std::string* block) {
  while (bucket_ < end_) {
    if (!entered_) {
      entered_ = true;
      Enter();
      if (Tombstones(block)) return true;
    }
    if (Rows(block)) return true;
    entered_ = false;
    if (++table_ == group_.tables_.size()) {
      table_ = 0;
      ++bucket_;
    }
  }
  return false;
}

uint32_t ChangeSource::First() const {
  group_.CheckSince(since_, group_.Floor());
  return group_.FirstRowEpochAfter(since_);
}

void ChangeSource::Enter() {
  Gate::Shared call(group_.gate_);
  BucketGuard guard(group_.locks_[bucket_], Access::kReads);
  rows_.Begin(shard(), First());
}

bool ChangeSource::Tombstones(std::string* block) {
  Gate::Shared call(group_.gate_);
  BucketGuard guard(group_.locks_[bucket_], Access::kReads);
  const RemovalRange wanted{First(), UINT32_MAX, group_.epoch_base_};
  return BuildTombstoneBlock(table(), bucket_, group_.buckets_[bucket_].tombstones, wanted, group_.Now(), block);
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

// Room for a whole block, or for all that a smaller shard has.
uint32_t ChangeSource::MostRows() {
  BucketGuard guard(group_.locks_[bucket_], Access::kReads);
  return std::min(BlockWriter::kRowsPerBlock, rows_.MostLeft(shard()) + 2 * kRowsPerHold);
}

}  // namespace monolith
