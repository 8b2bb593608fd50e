#include "format/row_block.h"

#include <bit>
#include <cstdio>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "format/crc32c.h"

namespace monolith {
namespace {

static_assert(std::endian::native == std::endian::little, "row blocks are little-endian memory images");

constexpr uint32_t kMagic = 0x424c524du;  // "MRLB"
constexpr uint16_t kVersion = 1;
constexpr uint64_t kHeaderBytes = 48;
constexpr uint64_t kTrailerBytes = 8;

// The header as stored in the file. Persisted: its size and the order of its members are the format.
struct WireHeader {
  uint32_t magic;
  uint16_t version;
  uint8_t kind;
  uint8_t zero;
  uint64_t digest;
  uint32_t table;
  uint32_t bucket;
  uint32_t count;
  uint32_t payload_bytes_per_row;
  uint64_t payload_bytes;
  uint64_t epoch;
};
static_assert(sizeof(WireHeader) == kHeaderBytes);

constexpr uint64_t PadTo8(uint64_t size) { return (size + 7) & ~uint64_t{7}; }
constexpr uint64_t TimesOffset(uint64_t rows) { return kHeaderBytes + 8 * rows; }
constexpr uint64_t PayloadOffset(uint64_t rows) { return TimesOffset(rows) + PadTo8(4 * rows); }

void PutHeader(const RowBlockHeader& header, char* to) {
  const WireHeader wire{kMagic,
                        kVersion,
                        static_cast<uint8_t>(header.kind),
                        0,
                        header.digest,
                        header.table,
                        header.bucket,
                        header.count,
                        header.payload_bytes_per_row,
                        header.payload_bytes,
                        header.epoch};
  std::memcpy(to, &wire, kHeaderBytes);
}

void PutChecksum(std::string* block) {
  const uint64_t covered = block->size() - kTrailerBytes;
  const uint64_t trailer = Crc32c(block->data(), covered);
  std::memcpy(block->data() + covered, &trailer, kTrailerBytes);
}

std::string Hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

// The origin of a block, so that every error message has file, offset and reason.
class Complaint {
 public:
  Complaint(std::string_view origin, uint64_t offset) : origin_(origin), offset_(offset) {}

  [[noreturn]] void Throw(uint64_t at, const std::string& reason) const {
    throw Error(Code::kDataLoss, std::string(origin_) + ": offset " + std::to_string(offset_ + at) + ": " + reason);
  }

 private:
  std::string_view origin_;
  uint64_t offset_;
};

RowBlockHeader ReadHeader(std::string_view bytes, const Complaint& complaint) {
  if (bytes.size() < kHeaderBytes + kTrailerBytes) {
    complaint.Throw(0,
                    "a row block takes at least 56 bytes, " + std::to_string(bytes.size()) + " are left (truncated)");
  }
  WireHeader wire;
  std::memcpy(&wire, bytes.data(), kHeaderBytes);
  if (wire.magic != kMagic)
    complaint.Throw(0, "not a row block: magic is " + Hex(wire.magic) + ", expected " + Hex(kMagic));
  if (wire.version != kVersion) {
    complaint.Throw(4, "row block version " + std::to_string(wire.version) + ", this build reads version 1");
  }
  if (wire.kind < 1 || wire.kind > 4) complaint.Throw(6, "unknown row block kind " + std::to_string(wire.kind));
  if (wire.zero != 0) complaint.Throw(7, "reserved byte is not zero");
  return {static_cast<BlockKind>(wire.kind), wire.digest,        wire.table, wire.bucket, wire.count,
          wire.payload_bytes_per_row,        wire.payload_bytes, wire.epoch};
}

void CheckHeader(const RowBlockHeader& header, const Complaint& complaint) {
  if (header.bucket >= static_cast<uint32_t>(kNumBuckets)) {
    complaint.Throw(20, "bucket " + std::to_string(header.bucket) + " is not below " + std::to_string(kNumBuckets));
  }
  if (header.kind == BlockKind::kFilter) {
    if (header.count != 0 || header.payload_bytes_per_row != 1 || header.table != 0 || header.digest != 0) {
      complaint.Throw(8, "a filter block has digest 0, table 0, count 0 and 1 payload byte per row");
    }
    return;
  }
  if (header.count > RowBlockBuilder::kMaxRows)
    complaint.Throw(24, "row count " + std::to_string(header.count) + " is above 2^30");
  if (header.kind == BlockKind::kTombstone && header.payload_bytes_per_row != 0) {
    complaint.Throw(
        28, "tombstones carry no payload, got " + std::to_string(header.payload_bytes_per_row) + " bytes per row");
  }
  const uint64_t expected = uint64_t{header.count} * header.payload_bytes_per_row;  // below 2^62
  if (header.payload_bytes != expected) {
    complaint.Throw(32, "payload is " + std::to_string(header.payload_bytes) + " bytes, expected " +
                            std::to_string(expected) + " for " + std::to_string(header.count) + " rows");
  }
}

RowBlockHeader ReadCheckedHeader(std::string_view bytes, const Complaint& complaint) {
  const RowBlockHeader header = ReadHeader(bytes, complaint);
  CheckHeader(header, complaint);
  // Compared piece by piece: a filter's payload_bytes is any 64-bit number so far, so a sum could wrap around.
  const uint64_t fixed = PayloadOffset(header.count) + kTrailerBytes;
  if (fixed > bytes.size() || header.payload_bytes > bytes.size() - fixed ||
      PadTo8(header.payload_bytes) > bytes.size() - fixed) {
    complaint.Throw(24, "block of " + std::to_string(header.count) + " rows and " +
                            std::to_string(header.payload_bytes) + " payload bytes does not fit into the " +
                            std::to_string(bytes.size()) + " bytes left (truncated)");
  }
  return header;
}

constexpr std::string_view kPacked = "packed row blocks";

// Calls visit(offset, bytes of the block) for blocks that lie end to end; each header is checked before its visit.
template <typename Visit>
void VisitPacked(std::string_view bytes, Visit&& visit) {
  for (uint64_t offset = 0; offset < bytes.size();) {
    const std::string_view rest = bytes.substr(offset);
    const uint64_t size = RowBlockBytes(ReadCheckedHeader(rest, Complaint(kPacked, offset)));
    visit(offset, rest.substr(0, size));
    offset += size;
  }
}

}  // namespace

uint64_t RowBlockBytes(const RowBlockHeader& header) {
  return PayloadOffset(header.count) + PadTo8(header.payload_bytes) + kTrailerBytes;
}

uint32_t RowBlockChecksum(std::string_view block) {
  uint32_t crc;
  std::memcpy(&crc, block.data() + block.size() - kTrailerBytes, sizeof(crc));
  return crc;
}

RowBlockBuilder::RowBlockBuilder(const RowBlockHeader& header, uint32_t max_rows, std::string memory)
    : header_(header),
      max_rows_(max_rows),
      keys_offset_(kHeaderBytes),
      times_offset_(TimesOffset(max_rows)),
      payload_offset_(PayloadOffset(max_rows)),
      bytes_(std::move(memory)) {
  MONOLITH_CHECK(max_rows <= kMaxRows && header.kind != BlockKind::kFilter);
  MONOLITH_CHECK(header.kind != BlockKind::kTombstone || header.payload_bytes_per_row == 0);
  header_.count = max_rows;
  header_.payload_bytes = uint64_t{max_rows} * header.payload_bytes_per_row;
  const uint64_t needed = RowBlockBytes(header_);
  if (bytes_.capacity() < needed) bytes_.clear();  // otherwise growing would copy bytes that are not read again
  bytes_.resize(needed);  // zero-fills only beyond the old size: next to nothing in a reused buffer
}

void RowBlockBuilder::CloseGap() {
  char* base = bytes_.data();
  std::memmove(base + TimesOffset(count_), base + times_offset_, 4 * uint64_t{count_});
  std::memmove(base + PayloadOffset(count_), base + payload_offset_, header_.payload_bytes);
}

std::string RowBlockBuilder::Finish() {
  MONOLITH_CHECK(count_ <= max_rows_);
  header_.count = count_;
  header_.payload_bytes = uint64_t{count_} * header_.payload_bytes_per_row;
  if (count_ < max_rows_) CloseGap();
  bytes_.resize(RowBlockBytes(header_));
  char* base = bytes_.data();
  PutHeader(header_, base);
  const uint64_t times_end = TimesOffset(count_) + 4 * uint64_t{count_};
  std::memset(base + times_end, 0, PayloadOffset(count_) - times_end);
  const uint64_t payload_end = PayloadOffset(count_) + header_.payload_bytes;
  std::memset(base + payload_end, 0, bytes_.size() - payload_end);
  PutChecksum(&bytes_);
  return std::move(bytes_);
}

std::string BuildFilterBlock(uint32_t bucket, uint64_t epoch, std::string_view filter, std::string memory) {
  RowBlockHeader header;
  header.kind = BlockKind::kFilter;
  header.bucket = bucket;
  header.payload_bytes_per_row = 1;
  header.payload_bytes = filter.size();
  header.epoch = epoch;
  std::string block = std::move(memory);
  block.clear();
  block.resize(RowBlockBytes(header));
  PutHeader(header, block.data());
  std::memcpy(block.data() + kHeaderBytes, filter.data(), filter.size());
  PutChecksum(&block);
  return block;
}

RowBlockHeader RowBlockView::HeaderAt(std::string_view bytes, std::string_view origin, uint64_t offset) {
  return ReadCheckedHeader(bytes, Complaint(origin, offset));
}

std::vector<RowBlockView> RowBlockView::AllOf(std::span<const std::string_view> blocks) {
  std::vector<RowBlockView> views;
  views.reserve(blocks.size());
  for (const std::string_view bytes : blocks) views.emplace_back(bytes);
  return views;
}

std::vector<RowBlockView> RowBlockView::AllIn(std::string_view bytes) {
  std::vector<RowBlockView> views;
  VisitPacked(bytes, [&](uint64_t offset, std::string_view block) { views.emplace_back(block, kPacked, offset); });
  return views;
}

std::vector<int64_t> PackedBlockOffsets(std::string_view bytes) {
  std::vector<int64_t> offsets;
  VisitPacked(bytes, [&](uint64_t offset, std::string_view) { offsets.push_back(static_cast<int64_t>(offset)); });
  offsets.push_back(static_cast<int64_t>(bytes.size()));
  return offsets;
}

void RowBlockView::Parse(std::string_view bytes, std::string_view origin, uint64_t offset) {
  const Complaint complaint(origin, offset);
  header_ = ReadCheckedHeader(bytes, complaint);
  const uint64_t size = RowBlockBytes(header_);
  if (size != bytes.size()) {
    complaint.Throw(
        size, std::to_string(bytes.size() - size) + " bytes follow a row block of " + std::to_string(size) + " bytes");
  }
  keys_ = bytes.data() + kHeaderBytes;
  times_ = bytes.data() + TimesOffset(header_.count);
  payload_ = bytes.data() + PayloadOffset(header_.count);
}

RowBlockView::RowBlockView(std::string_view bytes, Trusted) { Parse(bytes, "row block", 0); }

RowBlockView::RowBlockView(std::string_view bytes, std::string_view origin, uint64_t offset) {
  Parse(bytes, origin, offset);
  const Complaint complaint(origin, offset);
  const uint64_t covered = bytes.size() - kTrailerBytes;
  uint64_t trailer;
  std::memcpy(&trailer, bytes.data() + covered, kTrailerBytes);
  if ((trailer >> 32) != 0) complaint.Throw(covered + 4, "reserved trailer word is not zero");
  const uint32_t computed = Crc32c(bytes.data(), covered);
  if (computed != static_cast<uint32_t>(trailer)) {
    complaint.Throw(covered, "checksum of the row block is " + Hex(computed) + ", stored " +
                                 Hex(trailer & 0xffffffffu) + " (bytes were changed)");
  }
}

}  // namespace monolith
