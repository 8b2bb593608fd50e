// Group's history: marks, changes, tombstones.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "table/block_writer.h"
#include "table/group.h"

namespace monolith {

// Rows and removals after a mark, bucket by bucket, as they are when they are read.
class ChangeSource final : public BlockSource {
 public:
  ChangeSource(Group& group, uint32_t since, uint32_t begin, uint32_t end, bool state)
      : group_(group), since_(since), state_(state), bucket_(begin), end_(end) {}

  bool Next(std::string* block) override {
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

 private:
  static constexpr uint32_t kRowsPerHold = 64;

  Table& table() { return *group_.tables_[table_]; }
  uint64_t Epoch() const { return group_.AbsoluteEpoch(group_.clock_.epoch); }

  void Enter() {
    Gate::Shared call(group_.gate_);
    BucketGuard guard(group_.locks_[bucket_], Access::kReads);
    listed_ = table().shards[bucket_].ChangedSince(since_, &changed_);
    from_ = 0;
  }

  bool Tombstones(std::string* block) {
    Gate::Shared call(group_.gate_);
    Bucket& bucket = group_.buckets_[bucket_];
    BucketGuard guard(group_.locks_[bucket_], Access::kReads);
    return BuildTombstoneBlock(table(), bucket_, bucket.tombstones, since_, kMaxRowEpoch, Epoch(), block);
  }

  bool Rows(std::string* block) {
    if (from_ == kNoRow) return false;
    Gate::Shared call(group_.gate_);
    BlockWriter writer(table(), bucket_, state_, Epoch(), MostRows(), std::move(*block));
    while (from_ != kNoRow && writer.count() + kRowsPerHold <= writer.max_rows()) {
      BucketGuard guard(group_.locks_[bucket_], Access::kReads);
      const auto add = [&](uint32_t row) {
        const std::byte* record = table().rows.AtAllocated(row);
        if (IsLive(*HeaderOf(record)) && EpochOf(*HeaderOf(record)) > since_) writer.Add(record);
      };
      from_ = listed_ ? VisitListed(add) : table().shards[bucket_].VisitFrom(table().rows, from_, kRowsPerHold, add);
    }
    const bool any = writer.count() > 0;
    *block = writer.Finish();
    return any;
  }

  template <typename Visit>
  uint32_t VisitListed(Visit&& visit) {
    const auto end = static_cast<uint32_t>(std::min<size_t>(changed_.size(), from_ + kRowsPerHold));
    for (uint32_t i = from_; i < end; ++i) visit(changed_[i]);
    return end == changed_.size() ? kNoRow : end;
  }

  uint32_t MostRows() {
    if (listed_) {
      const auto left = static_cast<uint32_t>(changed_.size()) - from_;
      return std::min(BlockWriter::kRowsPerBlock, left + kRowsPerHold);
    }
    BucketGuard guard(group_.locks_[bucket_], Access::kReads);
    return std::min(BlockWriter::kRowsPerBlock, table().shards[bucket_].size() + 2 * kRowsPerHold);
  }

  Group& group_;
  const uint32_t since_;
  const bool state_;
  uint32_t bucket_;
  const uint32_t end_;
  size_t table_ = 0;
  bool entered_ = false;
  bool listed_ = false;
  std::vector<uint32_t> changed_;
  uint32_t from_ = 0;  // a row number, or a place in changed_ when listed_
};

uint32_t Group::RowEpoch(uint64_t since) const {
  if (since == 0) return 0;
  if (since < history_floor_ || since < epoch_base_) {
    throw Error(Code::kFailedPrecondition, "the history after epoch " + std::to_string(since) +
                                               " was forgotten; read everything from a cut or from epoch 0 instead");
  }
  return static_cast<uint32_t>(std::min<uint64_t>(since - epoch_base_, kMaxRowEpoch));
}

void Group::AdvanceEpoch() {
  if (clock_.epoch < kMaxRowEpoch) {
    ++clock_.epoch;
    return;
  }
  // Rows keep 24 bits of an epoch. Once in 16 million marks they all start over, and earlier marks become unusable.
  if (clock_.cut_is_open) {
    throw Error(Code::kResourceExhausted,
                "epochs must start over, which an open cut forbids; release it and try again");
  }
  history_floor_ = AbsoluteEpoch(clock_.epoch);
  epoch_base_ = history_floor_;
  clock_.epoch = 1;
  for (uint32_t number = 0; number < kNumBuckets; ++number) {
    BucketGuard guard(locks_[number], Access::kChanges);
    buckets_[number].tombstones = {};
    for (auto& table : tables_) {
      table->shards[number].VisitAll(table->rows, [&](uint32_t row) {
        RowHeader& header = *HeaderOf(table->rows.AtAllocated(row));
        header.meta = MakeMeta(FrequencyOf(header), 0);
      });
      if (clock_.logs_changes) table->shards[number].RestartLog(0);
    }
  }
}

uint64_t Group::Mark() {
  Gate::Alone alone(gate_);
  const uint64_t mark = AbsoluteEpoch(clock_.epoch);
  if (!clock_.logs_changes) {
    clock_.logs_changes = true;
    for (auto& table : tables_) {
      for (uint32_t number = 0; number < kNumBuckets; ++number) table->shards[number].RestartLog(clock_.epoch);
    }
  }
  AdvanceEpoch();
  return mark;
}

std::unique_ptr<BlockSource> Group::Changes(uint64_t since, uint32_t begin, uint32_t end, bool state) {
  if (begin > end || end > kNumBuckets) throw Error(Code::kInvalidArgument, "buckets must be a range in [0, 1024]");
  Gate::Shared call(gate_);
  return std::make_unique<ChangeSource>(*this, RowEpoch(since), begin, end, state);
}

std::vector<int64_t> Group::Tombstones(int table_number, uint64_t since) const {
  table(table_number);
  Gate::Shared call(gate_);
  const uint32_t row_epoch = RowEpoch(since);
  std::vector<int64_t> keys;
  for (uint32_t number = 0; number < kNumBuckets; ++number) {
    BucketGuard guard(locks_[number], Access::kReads);
    for (const Tombstone& tombstone : buckets_[number].tombstones) {
      if (static_cast<int>(tombstone.table) == table_number && tombstone.epoch > row_epoch)
        keys.push_back(tombstone.key);
    }
  }
  return keys;
}

void Group::Forget(uint64_t before) {
  Gate::Alone alone(gate_);
  if (before >= AbsoluteEpoch(clock_.epoch)) {
    throw Error(Code::kInvalidArgument, "only closed epochs can be forgotten: expected less than " +
                                            std::to_string(AbsoluteEpoch(clock_.epoch)) + ", got " +
                                            std::to_string(before));
  }
  if (clock_.cut_is_open) {
    throw Error(Code::kFailedPrecondition, "history cannot be forgotten while a cut is open; release it first");
  }
  if (before <= epoch_base_) return;
  const auto row_epoch = static_cast<uint32_t>(before - epoch_base_);
  history_floor_ = std::max(history_floor_, before);
  for (uint32_t number = 0; number < kNumBuckets; ++number) {
    auto& tombstones = buckets_[number].tombstones;
    tombstones.erase(tombstones.begin(), std::partition_point(tombstones.begin(), tombstones.end(),
                                                              [row_epoch](const Tombstone& tombstone) {
                                                                return tombstone.epoch <= row_epoch;
                                                              }));
    for (auto& table : tables_) table->shards[number].ForgetChanges(row_epoch);
  }
}

}  // namespace monolith
