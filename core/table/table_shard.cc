#include "table/table_shard.h"

#include <cmath>
#include <iterator>
#include <utility>

#include "base/hash.h"

namespace monolith {
namespace {

// Number of records that a shard of the given size allocates at a time. On average half of them are unused, and every
// run has to be listed, in practice every other one, because many are adjacent. This minimises the sum of both.
uint32_t RunLength(uint32_t size, size_t record_bytes) {
  constexpr double kListedBytes = sizeof(uint32_t) / 2.0;
  const auto length = static_cast<uint32_t>(std::sqrt(2.0 * kListedBytes * size / static_cast<double>(record_bytes)));
  return std::clamp(length / RecordPool::kUnit * RecordPool::kUnit, RecordPool::kUnit, RecordRuns::kLongestRun);
}

constexpr size_t kFirstImages = 64;

// In [0, 1), different for neighbouring buckets: the multiples of the golden ratio fill the interval most evenly.
double PhaseOf(uint32_t bucket) { return static_cast<double>((bucket * kGoldenGamma) >> 11) * 0x1p-53; }

}  // namespace

uint32_t TableShard::TakeUsed(RecordPool& rows) {
  if (free_ != kNoRow) {
    const uint32_t row = free_;
    free_ = static_cast<uint32_t>(HeaderOf(rows.AtAllocated(row))->key);
    return row;
  }
  if (holes_ != 0) {
    const uint32_t row = TakeHole(rows);
    if (row != kNoRow) return row;
  }
  if (fresh_ == 0) {
    const RecordPool::Run run =
        rows.Allocate(RunLength(size(), rows.record_bytes()), runs_.empty() ? 0 : runs_.back().end());
    runs_.Add(run);
    fresh_ = run.count;
  }
  return kNoRow;
}

uint32_t TableShard::TakeHole(RecordPool& rows) {
  for (size_t i = runs_.FirstFrom(first_hole_); i < runs_.size(); ++i) {
    const uint64_t end = runs_[i].end() - (i + 1 == runs_.size() ? fresh_ : 0);
    for (uint32_t row = std::max(first_hole_, runs_[i].begin); row < end; ++row) {
      const RowHeader& header = *HeaderOf(rows.AtAllocated(row));
      if (header.meta != kHoleMeta) continue;
      if (header.key != kKeyOfHoleInMemory) rows.NoteTakenBack();
      first_hole_ = row + 1;
      --holes_;
      return row;
    }
  }
  holes_ = 0;
  return kNoRow;
}

void TableShard::ListNoFreeRecords() {
  uint64_t used = 0;
  for (size_t i = 0; i < runs_.size(); ++i) used += runs_[i].count;
  holes_ = static_cast<uint32_t>(used - fresh_ - size());
  first_hole_ = 0;
  free_ = kNoRow;
}

uint32_t TableShard::Insert(RecordPool& rows, uint32_t bucket, uint64_t hash, int64_t key, const HistoryClock& clock,
                            const IndexLine* home) {
  if (index.ShouldGrow()) {
    Reserve(rows, bucket, size() + 1);
    home = nullptr;
  }
  if (home == nullptr) home = index.shape().HomeLineOf(hash);
  const uint32_t row = TakeRecord(rows);
  RowHeader& header = *HeaderOf(rows.AtAllocated(row));
  header.key = key;
  header.time = 0;
  header.meta = MakeMeta(0, clock.epoch);
  index.Insert(hash, row, home);
  if (clock.logs_changes) LogChange(row, clock.epoch);
  return row;
}

void TableShard::Reserve(RecordPool& rows, uint32_t bucket, uint32_t entries) {
  index.Grow(entries, PhaseOf(bucket / kPlateBuckets), [&](auto&& add) {
    VisitRecords(rows, 0, kNoRow,
                 [&](uint32_t row, const std::byte* record) { add(HashInBucket(bucket, HeaderOf(record)->key), row); });
  });
}

void TableShard::Erase(RecordPool& rows, uint32_t row, const HistoryClock& clock) {
  BeforeChange(rows, row, clock);
  RowHeader& header = *HeaderOf(rows.AtAllocated(row));
  index.Erase(HashInBucket(index.bucket(), header.key), row);
  header.meta = kListedMeta;
  header.key = free_;
  free_ = row;
}

void TableShard::EraseAll(RecordPool& rows, const HistoryClock& clock) {
  std::vector<uint32_t> live;
  VisitAll(rows, [&](uint32_t row) { live.push_back(row); });
  for (const uint32_t row : live) Erase(rows, row, clock);
}

void TableShard::Forget() {
  index.Forget();
  runs_.Clear();
  fresh_ = holes_ = 0;
  free_ = kNoRow;
  images_.clear();
  log_.Clear();
}

void TableShard::KeepImage(const RecordPool& rows, uint32_t row) {
  const std::byte* record = rows.AtAllocated(row);
  // The first steps after a cut keep many images: growing step by step would copy each of them again and touch fresh
  // pages twice. Unused capacity is never touched, and so takes no memory.
  if (images_.capacity() == 0) images_.reserve(std::max<size_t>(kFirstImages, size()) * rows.record_bytes());
  images_.insert(images_.end(), record, record + rows.record_bytes());
}

std::vector<std::byte> TableShard::TakeImages() {
  cut_cursor_ = kNoRow;
  return std::exchange(images_, {});
}

void TableShard::ShiftEpochs(const RecordPool& rows, const EpochShift& shift) {
  const auto shift_record = [&shift](std::byte* record) {
    RowHeader& header = *HeaderOf(record);
    header.meta = MakeMeta(FrequencyOf(header), shift.Of(EpochOf(header)));
  };
  VisitAll(rows, [&](uint32_t row) { shift_record(rows.AtAllocated(row)); });
  for (size_t at = 0; at < images_.size(); at += rows.record_bytes()) shift_record(images_.data() + at);
  log_.Shift(shift);
}

size_t TableShard::MemoryBytes() const {
  // Capacity for images that was never written to takes no memory.
  return sizeof(*this) + runs_.MemoryBytes() + images_.size() + log_.MemoryBytes();
}

}  // namespace monolith
