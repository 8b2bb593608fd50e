// DeviceGroup's history: marks, changes after them, and cuts.
#include "device/device_history.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/thread_pool.h"
#include "table/block_writer.h"

namespace monolith::device {
namespace {

constexpr uint64_t kBytesAtATime = uint64_t{256} << 20;  // of the rows of buckets that are read together

std::vector<std::string> AllOf(BlockSource& source) {
  std::vector<std::string> blocks;
  for (std::string block; source.Next(&block);) blocks.push_back(std::move(block));
  return blocks;
}

}  // namespace

bool PiecewiseSource::Next(std::string* block) {
  while (blocks_.empty()) {
    if (bucket_ == end_) return false;
    const uint32_t end = NextEnd();
    blocks_ = ReadBuckets(bucket_, end);
    bucket_ = end;
  }
  *block = std::move(blocks_.front());
  blocks_.pop_front();
  return true;
}

uint32_t PiecewiseSource::NextEnd() const {
  uint64_t bytes = 0;
  for (uint32_t bucket = bucket_; bucket < end_; ++bucket) {
    bytes += bytes_[bucket - first_];
    if (bytes > kBytesAtATime) return std::max(bucket, bucket_ + 1);
  }
  return end_;
}

uint64_t DeviceGroup::Mark() {
  MutexLock lock(mutex_);
  FinishEviction();
  const Group::RowEpochs before = host_.row_epochs();
  const uint64_t mark = host_.Mark();
  FollowEpochBase(before);
  return mark;
}

std::unique_ptr<BlockSource> DeviceGroup::Changes(uint64_t since, uint32_t begin, uint32_t end, bool state) {
  host_.Changes(since, begin, end, state);  // throws for a range or a mark that cannot be read
  return std::make_unique<DeviceChangeSource>(*this, since, begin, end, state);
}

std::vector<std::string> DeviceGroup::PackedChanges(uint64_t since, uint32_t begin, uint32_t end, bool state) {
  return AllOf(*Changes(since, begin, end, state));
}

std::unique_ptr<Cut> DeviceGroup::OpenCut() {
  MutexLock lock(mutex_);
  FinishEviction();
  const Group::RowEpochs before = host_.row_epochs();
  std::unique_ptr<Cut> host = host_.OpenCut();
  Begin();
  FollowEpochBase(before);
  images_.Open(host_.row_epochs().cut_epoch);
  std::vector<int64_t> counts;
  for (const auto& table : tables_) counts.push_back(table->size());
  return std::make_unique<DeviceCut>(*this, std::move(host), std::move(counts));
}

void DeviceGroup::CloseCut(Cut& host) {
  MutexLock lock(mutex_);
  host.Release();
  images_.Close();
}

DeviceCut::DeviceCut(DeviceGroup& group, std::unique_ptr<Cut> host, std::vector<int64_t> counts)
    : Cut(host->epoch()), group_(group), host_(std::move(host)) {
  counts_ = std::move(counts);
  newest_times_ = host_->newest_times();
  stamps_ = host_->stamps();
}

std::unique_ptr<BlockSource> DeviceCut::Blocks(uint32_t begin, uint32_t end, const CutOptions& options) {
  if (begin > end || end > kNumBuckets) throw Error(Code::kInvalidArgument, "buckets must be a range in [0, 1024]");
  host_->Blocks(begin, begin, options);  // throws for a cut that was released, and for a mark that cannot be read
  std::vector<std::unique_ptr<BlockSource>> host;
  for (uint32_t bucket = begin; bucket < end; ++bucket) host.push_back(host_->Blocks(bucket, bucket + 1, options));
  return std::make_unique<DeviceCutSource>(group_, *this, begin, end, options, std::move(host));
}

void DeviceCut::Release() {
  if (!released_.exchange(true)) group_.CloseCut(*host_);  // another cut may be open by now
}

std::vector<uint64_t> DeviceGroup::BytesOfChanges(uint64_t since, uint32_t begin, uint32_t end) {
  std::vector<uint64_t> bytes(end - begin);
  MutexLock lock(mutex_);
  FinishEviction();
  Begin();
  const RowSelection changed{host_.FirstRowEpochAfter(since), UINT32_MAX, begin, end, {}, false, {}};
  for (uint32_t table = 0; table < tables_.size(); ++table) {
    const std::vector<uint32_t> counts = CountRows(table, changed);
    for (uint32_t i = 0; i < bytes.size(); ++i) bytes[i] += counts[begin + i] * uint64_t{SpecOf(table).row_bytes()};
  }
  return bytes;
}

std::vector<uint32_t> DeviceGroup::CountRows(uint32_t table, const RowSelection& selection) {
  auto* counts = Zeros<uint32_t>(kNumBuckets);
  const CountRowsInBuckets count{TablesNow(), table, tables_[table]->num_numbers(), selection, counts};
  Launch(count.NumThreads(), count);
  std::vector<uint32_t> of_buckets(kNumBuckets);
  CopyToHost(of_buckets.data(), counts, of_buckets.size());
  Wait();
  return of_buckets;
}

template <typename MakeCount, typename MakeList>
DeviceGroup::Listing DeviceGroup::ListBy(const MakeCount& make_count, const MakeList& make_list) {
  auto* counts = Zeros<uint32_t>(kNumBuckets);
  const auto count = make_count(counts);
  Launch(count.NumThreads(), count);
  std::vector<uint32_t> of_buckets(kNumBuckets);
  CopyToHost(of_buckets.data(), counts, of_buckets.size());
  Wait();
  Listing listing;
  listing.starts.push_back(0);
  for (const uint32_t number : of_buckets) listing.starts.push_back(listing.starts.back() + number);
  listing.count = listing.starts.back();
  if (listing.count == 0) return listing;
  listing.numbers = scratch_.Take<uint32_t>(listing.count);
  const uint32_t* starts = scratch_.Upload(std::span<const uint32_t>(listing.starts), config_.stream);
  const auto list = make_list(BucketPlaces{starts, Zeros<uint32_t>(kNumBuckets)}, listing.numbers);
  Launch(list.NumThreads(), list);
  return listing;
}

DeviceGroup::Listing DeviceGroup::ListRows(uint32_t table, const RowSelection& selection) {
  const Tables tables = TablesNow();
  const uint32_t num_rows = tables_[table]->num_numbers();
  return ListBy([&](uint32_t* counts) { return CountRowsInBuckets{tables, table, num_rows, selection, counts}; },
                [&](const BucketPlaces& places, uint32_t* rows) {
                  return ListRowsInBuckets{tables, table, num_rows, selection, places, rows};
                });
}

DeviceGroup::Listing DeviceGroup::ListImages(uint32_t table, const RowSelection& selection) {
  const ImagePool& pool = images_.pool(table);
  if (pool.most == 0) return {};
  return ListBy([&](uint32_t* counts) { return CountImagesInBuckets{pool, selection, counts}; },
                [&](const BucketPlaces& places, uint32_t* images) {
                  return ListImagesInBuckets{pool, selection, places, images};
                });
}

template <typename MakePack>
void DeviceGroup::CopyRecords(uint32_t table, Listing listing, const MakePack& make_pack, RowCopy* copied) {
  if (listing.count == 0) return;
  const RecordLayout layout = RecordLayoutOf(SpecOf(table));
  const size_t bytes = size_t{listing.count} * layout.record_bytes;
  const Records records{layout, scratch_.Take<std::byte>(bytes)};
  const auto pack = make_pack(records, LaneBitsForRecord(layout.record_bytes));
  Launch(pack.NumThreads(), pack);
  std::vector<std::byte> host_records(bytes);
  CopyToHost(host_records.data(), records.bytes, bytes);
  copied->push_back({table, std::move(listing.starts), std::move(host_records)});
}

void DeviceGroup::CopyRows(uint32_t table, const RowSelection& selection, RowCopy* copied) {
  const Listing rows = ListRows(table, selection);
  const Tables tables = TablesNow();
  const auto make_pack = [&](const Records& records, uint32_t lane_bits) {
    return PackRecords{tables, RowsOfTable(table, rows.numbers, rows.count), records, lane_bits};
  };
  CopyRecords(table, rows, make_pack, copied);
}

void DeviceGroup::CopyImages(uint32_t table, const RowSelection& selection, RowCopy* copied) {
  const Listing images = ListImages(table, selection);
  const Records pool = images_.pool(table).records;
  const auto make_pack = [&](const Records& records, uint32_t lane_bits) {
    return PackImages{pool, images.count, images.numbers, records, lane_bits};
  };
  CopyRecords(table, images, make_pack, copied);
}

// Blocks of the rows of one bucket, after those of the host group. Kernels list rows in any order; by their keys the
// bytes are the same every time.
void DeviceGroup::WriteBlocks(const RowCopy& copied, uint32_t bucket, bool state, uint64_t epoch,
                              std::vector<std::string>* blocks) const {
  for (const CopiedRows& rows : copied) {
    const Table& table = host_.table(static_cast<int>(rows.table));
    const size_t record_bytes = table.spec.row_bytes();
    std::vector<const std::byte*> records;
    for (uint32_t i = rows.starts[bucket]; i < rows.starts[bucket + 1]; ++i) {
      records.push_back(rows.records.data() + i * record_bytes);
    }
    std::sort(records.begin(), records.end(),
              [](const std::byte* a, const std::byte* b) { return HeaderOf(a)->key < HeaderOf(b)->key; });
    for (auto next = records.begin(); next != records.end();) {
      const auto left = static_cast<uint32_t>(records.end() - next);
      BlockWriter writer(table, bucket, state, epoch, std::min(left, BlockWriter::kRowsPerBlock), {});
      for (; next != records.end() && !writer.IsFull(); ++next) writer.Add(*next);
      blocks->push_back(writer.Finish());
    }
  }
}

std::deque<std::string> DeviceGroup::WriteAllBlocks(const RowCopy& copied, uint32_t begin, bool state, uint64_t epoch,
                                                    std::vector<std::vector<std::string>> by_bucket) const {
  ParallelFor(static_cast<int>(by_bucket.size()), [&](int i) {
    WriteBlocks(copied, begin + static_cast<uint32_t>(i), state, epoch, &by_bucket[static_cast<size_t>(i)]);
  });
  std::deque<std::string> blocks;
  for (auto& of_bucket : by_bucket) std::move(of_bucket.begin(), of_bucket.end(), std::back_inserter(blocks));
  return blocks;
}

std::deque<std::string> DeviceGroup::ReadChanges(uint64_t since, uint32_t begin, uint32_t end, bool state) {
  std::vector<std::vector<std::string>> by_bucket;
  RowCopy copied;
  uint64_t epoch = 0;
  {
    MutexLock lock(mutex_);
    FinishEviction();
    Begin();
    // Removals first: an id that is inserted again afterwards is among the rows.
    for (uint32_t bucket = begin; bucket < end; ++bucket) {
      by_bucket.push_back(AllOf(*host_.Changes(since, bucket, bucket + 1, state)));
    }
    const RowSelection changed{host_.FirstRowEpochAfter(since), UINT32_MAX, begin, end, {}, false, {}};
    for (uint32_t table = 0; table < tables_.size(); ++table) CopyRows(table, changed, &copied);
    epoch = host_.LastMark() + 1;
    Wait();
  }
  return WriteAllBlocks(copied, begin, state, epoch, std::move(by_bucket));
}

std::deque<std::string> DeviceGroup::ReadCut(const Cut& cut, uint32_t begin, uint32_t end, const CutOptions& options,
                                             std::span<const std::unique_ptr<BlockSource>> host) {
  std::vector<std::vector<std::string>> by_bucket;
  RowCopy copied;
  {
    MutexLock lock(mutex_);
    Begin();
    const uint32_t first = options.since ? host_.FirstRowEpochAfter(*options.since) : 0;
    const uint32_t last = host_.row_epochs().cut_epoch;
    for (uint32_t table = 0; table < tables_.size(); ++table) {
      RowSelection selection{first, last, begin, end, {}, options.drop_expired, {}};
      if (options.drop_expired) selection.expiry = ExpiryOf(table, cut.newest_times()[table]);
      CopyRows(table, selection, &copied);
      CopyImages(table, selection, &copied);
    }
    images_.MarkRead(begin, end);
    Wait();
    for (const auto& source : host) by_bucket.push_back(AllOf(*source));  // last: it can be read once
  }
  return WriteAllBlocks(copied, begin, options.state, cut.epoch(), std::move(by_bucket));
}

}  // namespace monolith::device
