#include "device/row_images.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/hash.h"

namespace monolith::device {

RecordLayout RecordLayoutOf(const TableSpec& spec) {
  return {static_cast<uint32_t>(spec.payload_bytes()), static_cast<uint32_t>(spec.row_bytes())};
}

RowImages::RowImages(Launcher& launcher, Stream stream, const Group& group)
    : launcher_(launcher),
      stream_(stream),
      read_buckets_(kNumBuckets / 32),
      pools_(static_cast<size_t>(group.num_tables())),
      used_(launcher, pools_.size()),
      device_read_buckets_(launcher, read_buckets_.size()),
      views_(launcher, pools_.size()) {
  for (size_t t = 0; t < pools_.size(); ++t) {
    pools_[t].view.records.layout = RecordLayoutOf(group.table(static_cast<int>(t)).spec);
    pools_[t].view.used = used_.data() + t;
  }
}

void RowImages::Open(uint32_t cut_epoch) {
  is_open_ = true;
  cut_epoch_ = cut_epoch;
  std::fill(read_buckets_.begin(), read_buckets_.end(), 0);
  launcher_.Fill(device_read_buckets_.data(), 0, device_read_buckets_.size(), stream_);
  launcher_.Fill(used_.data(), 0, used_.size(), stream_);
  for (Pool& pool : pools_) pool.num_used = 0;
}

void RowImages::Close() {
  is_open_ = false;
  for (Pool& pool : pools_) {
    pool.records = {};
    pool.buckets = {};
    pool.view.most = pool.num_used = 0;
  }
  are_views_changed_ = true;
}

void RowImages::MarkRead(uint32_t begin, uint32_t end) {
  for (uint32_t bucket = begin; bucket < end; ++bucket) read_buckets_[bucket / 32] |= 1u << bucket % 32;
  launcher_.Copy(device_read_buckets_.data(), read_buckets_.data(), read_buckets_.size() * sizeof(uint32_t), stream_);
}

void RowImages::Grow(Pool& pool, uint32_t most) {
  const size_t record_bytes = pool.view.records.layout.record_bytes;
  DeviceArray<std::byte> records(launcher_, most * record_bytes);
  DeviceArray<uint16_t> buckets(launcher_, most);
  launcher_.Copy(records.data(), pool.records.data(), pool.num_used * record_bytes, stream_);
  launcher_.Copy(buckets.data(), pool.buckets.data(), pool.num_used * sizeof(uint16_t), stream_);
  launcher_.Wait(stream_);
  pool.records = std::move(records);
  pool.buckets = std::move(buckets);
  pool.view.records.bytes = pool.records.data();
  pool.view.buckets = pool.buckets.data();
  pool.view.most = most;
  are_views_changed_ = true;
}

// The counts on the device are those of the calls before, and are read only if there might not be room.
void RowImages::MakeRoom(std::span<const uint32_t> rows_of_tables) {
  if (!is_open_) return;
  const auto is_short = [&](size_t t) {
    return uint64_t{pools_[t].num_used} + rows_of_tables[t] > pools_[t].view.most;
  };
  bool is_any_short = false;
  for (size_t t = 0; t < pools_.size(); ++t) is_any_short |= is_short(t);
  if (is_any_short) {
    std::vector<uint32_t> used(pools_.size());
    launcher_.Copy(used.data(), used_.data(), used.size() * sizeof(uint32_t), stream_);
    launcher_.Wait(stream_);
    for (size_t t = 0; t < pools_.size(); ++t) pools_[t].num_used = used[t];
  }
  for (size_t t = 0; t < pools_.size(); ++t) {
    const uint64_t needed = uint64_t{pools_[t].num_used} + rows_of_tables[t];
    constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max() - 1;
    if (is_short(t)) Grow(pools_[t], static_cast<uint32_t>(std::min(kMost, 2 * needed)));
  }
  for (size_t t = 0; t < pools_.size(); ++t) pools_[t].num_used += rows_of_tables[t];
  if (!are_views_changed_) return;
  std::vector<ImagePool> views;
  for (const Pool& pool : pools_) views.push_back(pool.view);
  launcher_.Copy(views_.data(), views.data(), views.size() * sizeof(ImagePool), stream_);
  are_views_changed_ = false;
}

void RowImages::Keep(Scratch& scratch, const Tables& tables, const RowList& changing, const uint32_t* refused) {
  if (!is_open_ || changing.most == 0) return;
  auto* images = scratch.Take<uint32_t>(changing.most);
  const PickImages pick{tables, changing, refused, cut_epoch_, {device_read_buckets_.data()}, views_.data(), images};
  launcher_.Launch(pick.NumThreads(), pick, stream_);
  uint32_t record_bytes = 0;
  for (const Pool& pool : pools_) record_bytes = std::max(record_bytes, pool.view.records.layout.record_bytes);
  const KeepImages keep{tables, changing, views_.data(), images, LaneBitsForRecord(record_bytes)};
  launcher_.Launch(keep.NumThreads(), keep, stream_);
}

void RowImages::ShiftEpochs(const EpochShift& shift) {
  if (!is_open_) return;
  cut_epoch_ = shift.Of(cut_epoch_);
  for (const Pool& pool : pools_) {
    const ShiftImageEpochs kernel{pool.view, shift};
    launcher_.Launch(kernel.NumThreads(), kernel, stream_);
  }
}

}  // namespace monolith::device
