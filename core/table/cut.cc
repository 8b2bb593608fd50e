#include "table/cut.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "format/row_block.h"
#include "table/block_writer.h"
#include "table/changed_rows.h"

namespace monolith {

// Reads the buckets of a cut one after another. Within a bucket: the filter, then for each table its tombstones, its
// rows as they are found, and the images of rows that changed before they were found. Epochs are only compared inside
// the gate, where they cannot be renumbered.
class CutSource final : public BlockSource {
 public:
  CutSource(GroupCut& cut, uint32_t begin, uint32_t end, const CutOptions& options)
      : cut_(cut), group_(cut.group_), options_(options), bucket_(begin), end_(end) {}

  bool Next(std::string* block) override {
    while (bucket_ < end_) {
      switch (stage_) {
        case Stage::kFilter:
          stage_ = Stage::kTombstones;
          if (!options_.since && Filter(block)) return true;
          break;
        case Stage::kTombstones:
          stage_ = Stage::kRows;
          if (Tombstones(block)) return true;
          break;
        case Stage::kRows:
          if (Rows(block)) return true;
          TakeImages();
          stage_ = Stage::kImages;
          break;
        case Stage::kImages:
          if (Images(block)) return true;
          NextTable();
          break;
      }
    }
    return false;
  }

 private:
  enum class Stage { kFilter, kTombstones, kRows, kImages };
  static constexpr uint32_t kRowsPerHold = 64;

  struct Hold {
    Hold(Group& group, uint32_t bucket) : call(group.gate_), guard(group.locks_[bucket], Access::kReads) {}
    Gate::Shared call;
    BucketGuard guard;
  };

  Table& table() { return *group_.tables_[table_]; }
  TableShard& shard() { return table().shards[bucket_]; }

  void NextTable() {
    stage_ = Stage::kTombstones;
    if (++table_ < group_.tables_.size()) return;
    table_ = 0;
    stage_ = Stage::kFilter;
    ++bucket_;
  }

  bool Filter(std::string* block) {
    Bucket& bucket = group_.buckets_[bucket_];
    std::string bytes;
    {
      const Hold hold(group_, bucket_);
      const FilterSlice* filter = bucket.filter_changed_since_cut ? bucket.filter_at_cut.get() : bucket.filter.get();
      if (filter != nullptr) bytes = filter->Save();
      bucket.filter_changed_since_cut = true;  // it has been read: no copy is needed any more
      bucket.filter_at_cut.reset();
    }
    if (bytes.empty()) return false;
    *block = BuildFilterBlock(bucket_, cut_.epoch_, bytes, std::move(*block));
    return true;
  }

  // First row epoch to read; the last is the cut's. Valid only during a Hold.
  uint32_t First() const { return options_.since ? group_.FirstRowEpochAfter(*options_.since) : 0; }

  // Also determines which rows have to be visited.
  bool Tombstones(std::string* block) {
    const Hold hold(group_, bucket_);
    rows_.Begin(shard(), First(), options_.state ? table().rows.record_bytes() : table().spec.read_bytes());
    const RemovalRange wanted{First(), group_.clock_.cut_epoch, group_.epoch_base_};
    return BuildTombstoneBlock(table(), bucket_, group_.buckets_[bucket_].tombstones, wanted, cut_.epoch_, block);
  }

  bool Wanted(const std::byte* record) {
    const RowHeader& row = *HeaderOf(record);
    return !options_.drop_expired || !table().spec.HasExpired(row.key, row.time, cut_.newest_times_[table_]);
  }

  // Writes the next block of rows that have not changed since the cut, a few rows per hold.
  bool Rows(std::string* block) {
    if (rows_.AtEnd()) return false;
    BlockWriter writer(table(), bucket_, options_.state, cut_.epoch_, MostRows(), std::move(*block));
    while (!rows_.AtEnd() && writer.count() + kRowsPerHold <= writer.max_rows()) {
      const Hold hold(group_, bucket_);
      const uint32_t first = First(), last = group_.clock_.cut_epoch;
      rows_.Step(shard(), table().rows, kRowsPerHold, [&](const std::byte* record) {
        const uint32_t epoch = EpochOf(*HeaderOf(record));
        if (epoch >= first && epoch <= last && Wanted(record)) writer.Add(record);
      });
      shard().AdvanceCut(rows_.next());
    }
    const bool any = writer.count() > 0;
    *block = writer.Finish();
    return any;
  }

  // Room for a full block, or for all rows of a smaller shard; the number of unchanged rows can only decrease.
  uint32_t MostRows() {
    const Hold hold(group_, bucket_);
    return std::min(BlockWriter::kRowsPerBlock, rows_.MostLeft(shard()) + 2 * kRowsPerHold);
  }

  // From here on the epochs in the images are not renumbered.
  void TakeImages() {
    const Hold hold(group_, bucket_);
    images_ = shard().TakeImages();
    first_in_images_ = First();
    image_ = 0;
  }

  bool Images(std::string* block) {
    const size_t record_bytes = table().rows.record_bytes();
    if (image_ * record_bytes >= images_.size()) return false;
    BlockWriter writer(table(), bucket_, options_.state, cut_.epoch_, BlockWriter::kRowsPerBlock, std::move(*block));
    for (; image_ * record_bytes < images_.size() && !writer.IsFull(); ++image_) {
      const std::byte* record = images_.data() + image_ * record_bytes;
      if (EpochOf(*HeaderOf(record)) >= first_in_images_ && Wanted(record)) writer.Add(record);
    }
    const bool any = writer.count() > 0;
    *block = writer.Finish();
    return any;
  }

  GroupCut& cut_;
  Group& group_;
  const CutOptions options_;
  uint32_t bucket_;
  const uint32_t end_;
  Stage stage_ = Stage::kFilter;
  size_t table_ = 0;
  ChangedRows rows_;
  std::vector<std::byte> images_;
  uint32_t first_in_images_ = 0;
  size_t image_ = 0;
};

GroupCut::GroupCut(Group& group)
    : Cut(group.Now()), group_(group), claimed_(std::make_unique<std::atomic<bool>[]>(kNumBuckets)) {
  stamps_ = group.workers_.Stamps();
  for (const auto& table : group.tables_) {
    counts_.push_back(table->Size());
    newest_times_.push_back(table->newest_time.load(std::memory_order_relaxed));
  }
}

std::unique_ptr<BlockSource> GroupCut::Blocks(uint32_t begin, uint32_t end, const CutOptions& options) {
  if (begin > end || end > kNumBuckets) throw Error(Code::kInvalidArgument, "buckets must be a range in [0, 1024]");
  if (released_) throw Error(Code::kFailedPrecondition, "the cut was released and can no longer be read");
  if (options.since) CheckSince(*options.since);
  for (uint32_t bucket = begin; bucket < end; ++bucket) {
    if (claimed_[bucket].exchange(true)) {
      throw Error(Code::kFailedPrecondition,
                  "bucket " + std::to_string(bucket) + " of this cut was read before; a cut can be read once");
    }
  }
  return std::make_unique<CutSource>(*this, begin, end, options);
}

void GroupCut::CheckSince(uint64_t since) const {
  if (since > epoch_) {
    throw Error(Code::kInvalidArgument, "epoch " + std::to_string(since) + " comes after this cut, which is of epoch " +
                                            std::to_string(epoch_) + "; expected a mark before the cut");
  }
  Gate::Shared call(group_.gate_);
  group_.CheckSince(since, group_.cut_floor_);
}

void GroupCut::Release() {
  if (!released_.exchange(true)) group_.CloseCut();
}

std::unique_ptr<Cut> Group::OpenCut() {
  Gate::Alone alone(gate_);
  if (clock_.cut_is_open) {
    throw Error(Code::kFailedPrecondition, "a cut is open already; release it before taking another");
  }
  std::unique_ptr<GroupCut> cut(new GroupCut(*this));
  KeepRemovals();
  cut_mark_ = cut->epoch();
  cut_floor_ = history_floor_;
  clock_.cut_epoch = clock_.epoch;
  clock_.cut_is_open = true;
  AdvanceEpoch();
  for (auto& table : tables_) {
    for (uint32_t number = 0; number < kNumBuckets; ++number) table->shards[number].OpenCut();
  }
  for (uint32_t number = 0; number < kNumBuckets; ++number) buckets_[number].filter_changed_since_cut = false;
  return cut;
}

void Group::CloseCut() {
  Gate::Alone alone(gate_);
  clock_.cut_is_open = false;
  for (uint32_t number = 0; number < kNumBuckets; ++number) {
    for (auto& table : tables_) table->shards[number].TakeImages();
    buckets_[number].filter_at_cut.reset();
    buckets_[number].filter_changed_since_cut = false;
  }
  DropForgotten();
}

}  // namespace monolith
