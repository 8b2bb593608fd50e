#include "device/device_table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include "base/error.h"

namespace monolith::device {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr size_t kBoundary = 256;
constexpr double kHighestLoad = 0.76;    // of the segment that is built again last
constexpr double kLowestLoad = 0.68;     // of the one that is built again first
constexpr double kLoadAfterBuild = 0.5;  // at most

size_t RoundedUp(size_t bytes) { return (bytes + kBoundary - 1) / kBoundary * kBoundary; }

// Rows that all but never are exceeded in one segment when `count` of them are spread by a hash: the mean and eight
// standard deviations.
uint64_t MostInSegment(uint64_t count) {
  const double mean = static_cast<double>(count) / kNumSegments;
  return std::min(count, static_cast<uint64_t>(mean + 8.0 * std::sqrt(mean)) + 8);
}

uint64_t MostWords(uint32_t segment, uint64_t num_words) {
  const double share = static_cast<double>(segment) / (kNumSegments - 1);
  return static_cast<uint64_t>(static_cast<double>(num_words) * (kLowestLoad + (kHighestLoad - kLowestLoad) * share));
}

}  // namespace

std::byte* ChunkMemory::Take(size_t bytes) {
  bytes = RoundedUp(bytes);
  if (slabs_.empty() || used_ + bytes > slabs_.back().size()) {
    // As much again as there is, so that small tables take little and large ones few pieces.
    slabs_.push_back(NewSlab(bytes, std::clamp<size_t>(size_bytes_, bytes, std::max(bytes, most_bytes_))));
    size_bytes_ += slabs_.back().size();
    used_ = 0;
  }
  std::byte* piece = slabs_.back().data() + used_;
  used_ += bytes;
  return piece;
}

// As much as is wanted; only what is needed if there is not as much.
DeviceArray<std::byte> ChunkMemory::NewSlab(size_t needed, size_t wanted) {
  try {
    return DeviceArray<std::byte>(launcher_, wanted);
  } catch (const Error& error) {
    if (error.code() != Code::kResourceExhausted || wanted == needed) throw;
  }
  return DeviceArray<std::byte>(launcher_, needed);
}

void ChunkMemory::Clear() {
  slabs_.clear();
  used_ = 0;
  size_bytes_ = 0;
}

DeviceTable::DeviceTable(Launcher& launcher, Stream stream, ChunkMemory& chunks, uint32_t payload_bytes,
                         bool keeps_buckets, const TableSizes& sizes)
    : launcher_(launcher), stream_(stream), chunks_(chunks), keeps_buckets_(keeps_buckets), sizes_(sizes) {
  view_.stride = (payload_bytes / 4 + 3) / 4 * 4;
  const size_t row_bytes = sizeof(RowHeader) + sizeof(float) * view_.stride + (keeps_buckets ? sizeof(uint16_t) : 0);
  view_.chunk_bits = sizes.chunk_bits >= 0 ? static_cast<uint32_t>(sizes.chunk_bits)
                                           : static_cast<uint32_t>(std::bit_width(kChunkBytes / row_bytes | 15) - 1);
}

DeviceTable::EmptyIndex DeviceTable::NewIndex() const {
  EmptyIndex index;
  for (DeviceArray<uint64_t>& words : index.segments) words = DeviceArray<uint64_t>(launcher_, NumWordsOfEmpty());
  index.fill_counts = DeviceArray<uint32_t>(launcher_, 2);
  return index;
}

void DeviceTable::Create(EmptyIndex index, TableCounters* device_counters) {
  segments_ = std::move(index.segments);
  fill_counts_ = std::move(index.fill_counts);
  counters_ = {};
  for (uint32_t segment = 0; segment < kNumSegments; ++segment) {
    view_.segment_bits[segment] = static_cast<uint8_t>(sizes_.segment_bits);
    launcher_.Fill(reinterpret_cast<uint32_t*>(segments_[segment].data()), ~0u, 2 * NumWords(segment), stream_);
    view_.segments[segment] = segments_[segment].data();
    used_[segment] = 0;
  }
  chunk_addresses_.clear();
  num_listed_ = 0;
  chunk_list_ = {};
  free_rows_ = {};
  view_.chunks = nullptr;
  view_.free_rows = nullptr;
  view_.counters = device_counters;
  is_view_changed = true;
}

void DeviceTable::Reserve(uint32_t number, const Tables& tables, uint32_t more) {
  const uint64_t reused = std::min(counters_.num_free, more);
  ReserveRows(uint64_t{counters_.next_row} + more - reused);
  ReserveIndex(number, tables, more);
}

void DeviceTable::ReserveRows(uint64_t rows) {
  if (rows >= uint64_t{kNoRow} - 1) throw Error(Code::kResourceExhausted, "a table has at most 2^32 - 2 rows");
  while (uint64_t{chunk_addresses_.size()} << view_.chunk_bits < rows) AddChunk();
  if (chunk_addresses_.size() == num_listed_) return;
  if (chunk_list_.size() < chunk_addresses_.size()) {
    chunk_list_ = DeviceArray<Chunk>(launcher_, std::max<size_t>(64, 2 * chunk_addresses_.size()));
    view_.chunks = chunk_list_.data();
    is_view_changed = true;
  }
  launcher_.Copy(chunk_list_.data(), chunk_addresses_.data(), chunk_addresses_.size() * sizeof(Chunk), stream_);
  num_listed_ = chunk_addresses_.size();
}

size_t DeviceTable::ChunkBytes() const {
  const size_t rows = size_t{1} << view_.chunk_bits;
  return RoundedUp(rows * sizeof(RowHeader)) + RoundedUp(rows * sizeof(float) * view_.stride) +
         (keeps_buckets_ ? RoundedUp(rows * sizeof(uint16_t)) : 0);
}

void DeviceTable::AddChunk() {
  const size_t rows = size_t{1} << view_.chunk_bits;
  const size_t headers = RoundedUp(rows * sizeof(RowHeader));
  const size_t payloads = RoundedUp(rows * sizeof(float) * view_.stride);
  std::byte* memory = chunks_.Take(ChunkBytes());
  chunk_addresses_.push_back({reinterpret_cast<RowHeader*>(memory), reinterpret_cast<float*>(memory + headers),
                              keeps_buckets_ ? reinterpret_cast<uint16_t*>(memory + headers + payloads) : nullptr});
}

void DeviceTable::ReserveErased(uint32_t more) {
  const size_t needed = size_t{counters_.num_free} + more;
  if (needed <= free_rows_.size()) return;
  DeviceArray<uint32_t> longer(launcher_, needed + needed / 2);
  launcher_.Copy(longer.data(), free_rows_.data(), counters_.num_free * sizeof(uint32_t), stream_);
  launcher_.Wait(stream_);
  free_rows_ = std::move(longer);
  view_.free_rows = free_rows_.data();
  is_view_changed = true;
}

void DeviceTable::SetCounters(const TableCounters& counters) {
  if (counters.num_lost != 0) throw Error(Code::kInternal, "a segment of the index of rows on the device was full");
  // New rows took numbers that were free, and fresh ones.
  const uint32_t fresh = counters.next_row - counters_.next_row;
  const uint32_t reused = counters_.num_free > counters.num_free ? counters_.num_free - counters.num_free : 0;
  for (uint64_t& used : used_) used += MostInSegment(uint64_t{fresh} + reused);
  counters_ = counters;
}

void DeviceTable::ReserveIndex(uint32_t number, const Tables& tables, uint32_t more) {
  const uint64_t expected = MostInSegment(more);
  for (uint32_t segment = 0; segment < kNumSegments; ++segment) {
    if (used_[segment] + expected <= MostWords(segment, NumWords(segment))) continue;
    const Fill fill = CountSegment(segment);
    used_[segment] = uint64_t{fill.live} + fill.erased;
    if (used_[segment] + expected <= MostWords(segment, NumWords(segment))) continue;
    uint32_t size_bits = sizes_.segment_bits;
    const auto entries = static_cast<double>(fill.live + expected);
    while (entries > kLoadAfterBuild * static_cast<double>(uint64_t{1} << size_bits)) ++size_bits;
    Rebuild(number, tables, segment, size_bits);
    used_[segment] = fill.live;
  }
}

DeviceTable::Fill DeviceTable::CountSegment(uint32_t segment) {
  launcher_.Fill(fill_counts_.data(), 0, 2, stream_);
  launcher_.LaunchBlocks(
      std::min<uint64_t>((NumWords(segment) + kBlock - 1) / kBlock, 1024),
      CountWords{view_.segments[segment], NumWords(segment), fill_counts_.data(), fill_counts_.data() + 1}, stream_);
  uint32_t counts[2];
  launcher_.Copy(counts, fill_counts_.data(), sizeof(counts), stream_);
  launcher_.Wait(stream_);
  return {counts[0], counts[1]};
}

void DeviceTable::Rebuild(uint32_t number, const Tables& tables, uint32_t segment, uint32_t size_bits) {
  const uint64_t num_words = uint64_t{1} << size_bits, num_old = NumWords(segment);
  DeviceArray<uint64_t> built(launcher_, num_words);
  launcher_.Fill(reinterpret_cast<uint32_t*>(built.data()), ~0u, 2 * num_words, stream_);
  view_.segments[segment] = built.data();
  view_.segment_bits[segment] = static_cast<uint8_t>(size_bits);
  launcher_.Copy(const_cast<TableView*>(tables.views) + number, &view_, sizeof(view_), stream_);
  is_view_changed = true;
  launcher_.Launch(num_old, RehashSegment{tables, number, segments_[segment].data(), num_old}, stream_);
  launcher_.Wait(stream_);
  segments_[segment] = std::move(built);
}

uint64_t DeviceTable::index_bytes() const {
  uint64_t bytes = 0;
  for (const DeviceArray<uint64_t>& segment : segments_) bytes += segment.size() * sizeof(uint64_t);
  return bytes;
}

double DeviceTable::index_load() const {
  return static_cast<double>(size()) / (static_cast<double>(index_bytes()) / sizeof(uint64_t));
}

}  // namespace monolith::device
