#include "table/cut.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "format/row_block.h"
#include "table/block_writer.h"

namespace monolith {

// Reads the buckets of a cut one after another. Within a bucket: the filter, then for each table its tombstones, its
// rows as they are found, and the images of rows that changed before they were found.
class CutSource final : public BlockSource {
 public:
  CutSource(Cut& cut, uint32_t begin, uint32_t end, const CutOptions& options)
      : cut_(cut), group_(cut.group_), options_(options), bucket_(begin), end_(end) {}

  bool Next(std::string* block) override {
    while (bucket_ < end_) {
      switch (stage_) {
        case Stage::kFilter:
          stage_ = Stage::kTombstones;
          if (Filter(block)) return true;
          break;
        case Stage::kTombstones:
          stage_ = Stage::kRows;
          from_ = 0;
          if (Tombstones(block)) return true;
          break;
        case Stage::kRows:
          if (Rows(block)) return true;
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
      BucketGuard guard(group_.locks_[bucket_], Access::kReads);
      const FilterSlice* filter = bucket.filter_changed_since_cut ? bucket.filter_at_cut.get() : bucket.filter.get();
      if (filter != nullptr) bytes = filter->Save();
      bucket.filter_changed_since_cut = true;  // it has been read: no copy is needed any more
      bucket.filter_at_cut.reset();
    }
    if (bytes.empty()) return false;
    *block = BuildFilterBlock(bucket_, cut_.epoch_, bytes, std::move(*block));
    return true;
  }

  bool Tombstones(std::string* block) {
    Bucket& bucket = group_.buckets_[bucket_];
    BucketGuard guard(group_.locks_[bucket_], Access::kReads);
    return BuildTombstoneBlock(table(), bucket_, bucket.tombstones, 0, cut_.row_epoch_, cut_.epoch_, block);
  }

  bool Wanted(const std::byte* record) {
    const RowHeader& row = *HeaderOf(record);
    return !options_.drop_expired || !table().spec.HasExpired(row.key, row.time, cut_.newest_times_[table_]);
  }

  // The next block of rows that have not changed since the cut, read a few to a hold.
  bool Rows(std::string* block) {
    if (from_ == kNoRow) return false;
    BlockWriter writer(table(), bucket_, options_.state, cut_.epoch_, MostRows(), std::move(*block));
    while (from_ != kNoRow && writer.count() + kRowsPerHold <= writer.max_rows()) {
      BucketGuard guard(group_.locks_[bucket_], Access::kReads);
      from_ = shard().VisitFrom(table().rows, from_, kRowsPerHold, [&](uint32_t row) {
        const std::byte* record = table().rows.AtAllocated(row);
        if (EpochOf(*HeaderOf(record)) <= cut_.row_epoch_ && Wanted(record)) writer.Add(record);
      });
      shard().AdvanceCut(from_);
    }
    if (from_ == kNoRow) TakeImages();
    const bool any = writer.count() > 0;
    *block = writer.Finish();
    return any;
  }

  // Room for a whole block, or for all rows of a smaller shard; rows that have not changed only become fewer.
  uint32_t MostRows() {
    BucketGuard guard(group_.locks_[bucket_], Access::kReads);
    return std::min(BlockWriter::kRowsPerBlock, shard().size() + 2 * kRowsPerHold);
  }

  void TakeImages() {
    BucketGuard guard(group_.locks_[bucket_], Access::kReads);
    images_ = shard().TakeImages();
    image_ = 0;
  }

  bool Images(std::string* block) {
    const size_t record_bytes = table().rows.record_bytes();
    if (image_ * record_bytes >= images_.size()) return false;
    BlockWriter writer(table(), bucket_, options_.state, cut_.epoch_, BlockWriter::kRowsPerBlock, std::move(*block));
    for (; image_ * record_bytes < images_.size() && !writer.IsFull(); ++image_) {
      const std::byte* record = images_.data() + image_ * record_bytes;
      if (Wanted(record)) writer.Add(record);
    }
    const bool any = writer.count() > 0;
    *block = writer.Finish();
    return any;
  }

  Cut& cut_;
  Group& group_;
  const CutOptions options_;
  uint32_t bucket_;
  const uint32_t end_;
  Stage stage_ = Stage::kFilter;
  size_t table_ = 0;
  uint32_t from_ = 0;
  std::vector<std::byte> images_;
  size_t image_ = 0;
};

Cut::Cut(Group& group)
    : group_(group),
      epoch_(group.AbsoluteEpoch(group.clock_.epoch)),
      row_epoch_(group.clock_.epoch),
      stamps_(group.workers_.Stamps()),
      claimed_(std::make_unique<std::atomic<bool>[]>(kNumBuckets)) {
  for (const auto& table : group.tables_) {
    counts_.push_back(table->Size());
    newest_times_.push_back(table->newest_time.load(std::memory_order_relaxed));
  }
}

Cut::~Cut() { Release(); }

std::unique_ptr<BlockSource> Cut::Blocks(uint32_t begin, uint32_t end, const CutOptions& options) {
  if (begin > end || end > kNumBuckets) throw Error(Code::kInvalidArgument, "buckets must be a range in [0, 1024]");
  if (released_) throw Error(Code::kFailedPrecondition, "the cut was released and can no longer be read");
  for (uint32_t bucket = begin; bucket < end; ++bucket) {
    if (claimed_[bucket].exchange(true)) {
      throw Error(Code::kFailedPrecondition,
                  "bucket " + std::to_string(bucket) + " of this cut was read before; a cut can be read once");
    }
  }
  return std::make_unique<CutSource>(*this, begin, end, options);
}

void Cut::Release() {
  if (!released_.exchange(true)) group_.CloseCut();
}

std::unique_ptr<Cut> Group::OpenCut() {
  Gate::Alone alone(gate_);
  if (clock_.cut_is_open) {
    throw Error(Code::kFailedPrecondition, "a cut is open already; release it before taking another");
  }
  if (clock_.epoch == kMaxRowEpoch) AdvanceEpoch();
  std::unique_ptr<Cut> cut(new Cut(*this));
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
}

}  // namespace monolith
