// Group's history: marks, which changes are kept and for how long, and the numbering of epochs.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/thread_pool.h"
#include "table/change_source.h"
#include "table/group.h"

namespace monolith {

uint64_t Group::Mark() {
  Gate::Alone alone(gate_);
  const uint64_t mark = Now();
  AdvanceEpoch();
  return mark;
}

uint64_t Group::LastMark() const {
  Gate::Shared call(gate_);
  return Now() - 1;
}

uint64_t Group::HistoryFloor() const {
  Gate::Shared call(gate_);
  return Floor();
}

std::optional<uint64_t> Group::OpenCutEpoch() const {
  Gate::Shared call(gate_);
  return clock_.cut_is_open ? std::optional(cut_mark_) : std::nullopt;
}

void Group::CheckSince(uint64_t since, uint64_t floor) const {
  if (since == 0) return;
  if (since >= Now()) {
    throw Error(Code::kInvalidArgument, "epoch " + std::to_string(since) + " has not happened yet, the last mark is " +
                                            std::to_string(Now() - 1) + "; ask for changes since a mark of this group");
  }
  if (since < floor) {
    throw Error(Code::kFailedPrecondition, "the history after epoch " + std::to_string(since) +
                                               " was discarded; read everything from a cut or from epoch 0 instead");
  }
}

std::unique_ptr<BlockSource> Group::Changes(uint64_t since, uint32_t begin, uint32_t end, bool state) {
  if (begin > end || end > kNumBuckets) throw Error(Code::kInvalidArgument, "buckets must be a range in [0, 1024]");
  Gate::Shared call(gate_);
  CheckSince(since, Floor());
  return std::make_unique<ChangeSource>(*this, since, begin, end, state);
}

std::vector<std::string> Group::PackedChanges(uint64_t since, uint32_t begin, uint32_t end, bool state) {
  constexpr uint32_t kBucketsPerTask = 16;
  Changes(since, begin, end, state);  // throws what each of the tasks would
  std::vector<std::string> parts((end - begin + kBucketsPerTask - 1) / kBucketsPerTask);
  ParallelFor(static_cast<int>(parts.size()), [&](int task) {
    const uint32_t first = begin + static_cast<uint32_t>(task) * kBucketsPerTask;
    ChangeSource source(*this, since, first, std::min(end, first + kBucketsPerTask), state);
    for (std::string block; source.Next(&block);) parts[task] += block;
  });
  return parts;
}

std::vector<int64_t> Group::Tombstones(int table_number, uint64_t since) const {
  table(table_number);
  Gate::Shared call(gate_);
  CheckSince(since, Floor());
  const uint32_t first = FirstRowEpochAfter(since);
  std::vector<int64_t> keys;
  for (uint32_t number = 0; number < kNumBuckets; ++number) {
    BucketGuard guard(locks_[number], Access::kReads);
    for (const Tombstone& tombstone : buckets_[number].tombstones) {
      if (static_cast<int>(tombstone.table) == table_number && tombstone.epoch >= first) keys.push_back(tombstone.key);
    }
  }
  return keys;
}

void Group::KeepRemovals() {
  if (clock_.keeps_removals) return;
  clock_.keeps_removals = true;
  history_floor_ = Now();
}

void Group::FollowHistory(bool followed) {
  Gate::Alone alone(gate_);
  if (followed == is_followed_) return;
  is_followed_ = clock_.logs_changes = followed;
  for (auto& table : tables_) {
    for (uint32_t number = 0; number < kNumBuckets; ++number) {
      TableShard& shard = table->shards[number];
      followed ? shard.RestartLog(clock_.epoch) : shard.StopLog();
    }
  }
  if (followed) return KeepRemovals();
  if (clock_.cut_is_open) {
    history_floor_ = std::max(history_floor_, cut_mark_);
  } else {
    DropForgotten();
  }
}

void Group::TruncateHistory(uint64_t before) {
  Gate::Alone alone(gate_);
  if (before >= Now()) {
    throw Error(Code::kInvalidArgument, "only closed epochs can be discarded: expected less than " +
                                            std::to_string(Now()) + ", got " + std::to_string(before));
  }
  if (before <= Floor()) return;
  history_floor_ = before;
  if (!clock_.cut_is_open) DropForgotten();
}

// Drops history that can no longer be requested. REQUIRES: no cut is open.
void Group::DropForgotten() {
  clock_.keeps_removals = is_followed_;
  const uint32_t kept_from = FirstRowEpochAfter(history_floor_);
  for (uint32_t number = 0; number < kNumBuckets; ++number) {
    auto& tombstones = buckets_[number].tombstones;
    if (!clock_.keeps_removals) {
      std::vector<Tombstone>().swap(tombstones);
      continue;
    }
    const auto is_forgotten = [kept_from](const Tombstone& tombstone) { return tombstone.epoch < kept_from; };
    tombstones.erase(tombstones.begin(), std::partition_point(tombstones.begin(), tombstones.end(), is_forgotten));
    if (tombstones.size() < tombstones.capacity() / 4) tombstones.shrink_to_fit();
    if (kept_from == 0) continue;
    for (auto& table : tables_) table->shards[number].ForgetChanges(kept_from - 1);
  }
}

void Group::AdvanceEpoch() {
  if (clock_.epoch == max_row_epoch_) MoveEpochBase();
  ++clock_.epoch;
}

// Rows have 24 bits for an epoch. When these run out, all epochs are counted from a later base: the oldest epoch that
// can still be requested, but no older than half the range, to leave room for new epochs. Requests for older changes
// return all rows.
void Group::MoveEpochBase() {
  const uint64_t oldest = clock_.cut_is_open ? cut_floor_ : Floor();
  const uint64_t base = std::max(oldest, Now() - max_row_epoch_ / 2);
  const EpochShift shift{static_cast<uint32_t>(base - epoch_base_), clock_.cut_is_open ? clock_.cut_epoch : UINT32_MAX};
  constexpr int kBucketsPerTask = 16;
  ParallelFor(kNumBuckets / kBucketsPerTask, [&](int task) {
    for (uint32_t number = task * kBucketsPerTask; number < (task + 1u) * kBucketsPerTask; ++number) {
      BucketGuard guard(locks_[number], Access::kChanges);
      for (Tombstone& tombstone : buckets_[number].tombstones) tombstone.epoch = shift.Of(tombstone.epoch);
      for (auto& table : tables_) table->shards[number].ShiftEpochs(table->rows, shift);
    }
  });
  epoch_base_ = base;
  clock_.epoch -= shift.down;
  if (clock_.cut_is_open) clock_.cut_epoch = shift.Of(clock_.cut_epoch);
}

}  // namespace monolith
