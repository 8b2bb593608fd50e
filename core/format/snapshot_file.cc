#include "format/snapshot_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "format/crc32c.h"

namespace monolith {
namespace {

static_assert(std::endian::native == std::endian::little, "snapshot files are little-endian memory images");

// Version of header, index and footer. To change the layout: increment it, describe the new layout in
// docs/formats/snapshot.md, keep reading the old one, and store a real file of the old version under tests/format/.
constexpr uint16_t kVersion = 1;
constexpr uint32_t kHeaderMagic = 0x464e534du;  // "MSNF"
constexpr uint32_t kFooterMagic = 0x4d534e46u;  // "FNSM"

// The three structs are persisted: their sizes and the order of their members are the format.
struct WireHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t zero;
  uint64_t snapshot_id;
  uint32_t begin;
  uint32_t end;
  uint32_t crc;  // of the bytes before it
  uint32_t zero_tail;
};
static_assert(sizeof(WireHeader) == 32);

struct WireEntry {
  uint64_t offset;
  uint64_t length;
  uint32_t bucket;
  uint32_t table;
  uint32_t rows;
  uint32_t kind;
  uint32_t crc;
  uint32_t zero;
};
static_assert(sizeof(WireEntry) == 40);

struct WireFooter {
  uint64_t index_offset;
  uint64_t index_entries;
  uint64_t snapshot_id;
  uint32_t begin;
  uint32_t end;
  uint32_t index_crc;
  uint32_t crc;  // of the bytes before it
  uint16_t version;
  uint16_t zero;
  uint32_t magic;
};
static_assert(sizeof(WireFooter) == 48);

constexpr size_t kHeaderCovered = offsetof(WireHeader, crc);
constexpr size_t kFooterCovered = offsetof(WireFooter, crc);

template <typename Wire>
std::string_view BytesOf(const Wire& wire) {
  return {reinterpret_cast<const char*>(&wire), sizeof(wire)};
}

std::string Range(uint32_t begin, uint32_t end) {
  return "[" + std::to_string(begin) + ", " + std::to_string(end) + ")";
}

bool HoldsRows(BlockKind kind) { return kind == BlockKind::kFull || kind == BlockKind::kServing; }

}  // namespace

SnapshotFileWriter::SnapshotFileWriter(std::string path, uint64_t snapshot_id, uint32_t begin, uint32_t end,
                                       Caching caching)
    : file_(path, {}, caching), last_bucket_(begin) {
  if (begin >= end || end > static_cast<uint32_t>(kNumBuckets)) {
    throw Error(Code::kInvalidArgument, QuotedFile(path) + ": buckets " + Range(begin, end) +
                                            " are not a range inside [0, " + std::to_string(kNumBuckets) + ")");
  }
  info_.path = std::move(path);
  info_.snapshot_id = snapshot_id;
  info_.begin = begin;
  info_.end = end;
  WireHeader header{kHeaderMagic, kVersion, 0, snapshot_id, begin, end, 0, 0};
  header.crc = Crc32c(&header, kHeaderCovered);
  file_.Append(BytesOf(header));
}

void SnapshotFileWriter::Append(std::string_view block) {
  const RowBlockHeader header = RowBlockView::HeaderAt(block, "block for " + QuotedFile(info_.path));
  MONOLITH_CHECK(RowBlockBytes(header) == block.size());
  MONOLITH_CHECK(header.bucket >= last_bucket_ && header.bucket < info_.end);
  last_bucket_ = header.bucket;
  const WireEntry entry{file_.size(),
                        block.size(),
                        header.bucket,
                        header.table,
                        header.count,
                        static_cast<uint32_t>(header.kind),
                        RowBlockChecksum(block),
                        0};
  index_.append(BytesOf(entry));
  if (HoldsRows(header.kind)) info_.rows_by_table[header.table] += header.count;
  file_.Append(block);
}

SnapshotFileInfo SnapshotFileWriter::Finish() {
  info_.index_crc = Crc32c(index_);
  WireFooter footer{file_.size(),
                    index_.size() / sizeof(WireEntry),
                    info_.snapshot_id,
                    info_.begin,
                    info_.end,
                    info_.index_crc,
                    0,
                    kVersion,
                    0,
                    kFooterMagic};
  footer.crc = Crc32c(&footer, kFooterCovered);
  file_.Append(index_);
  file_.Append(BytesOf(footer));
  info_.bytes = file_.size();
  file_.Commit();
  return info_;
}

SnapshotFile::SnapshotFile(const SnapshotFileInfo& expected, Caching caching) : file_(expected.path, caching) {
  if (file_.size() != expected.bytes) {
    Refuse(std::min(file_.size(), expected.bytes), "the file is " + std::to_string(file_.size()) +
                                                       " bytes long, the manifest has " +
                                                       std::to_string(expected.bytes));
  }
  CheckFooter(expected);
  CheckHeader(expected);
  ReadIndex(expected);
}

void SnapshotFile::Refuse(uint64_t offset, const std::string& reason) const {
  throw Error(Code::kDataLoss, QuotedFile(file_.path()) + ": offset " + std::to_string(offset) + ": " + reason);
}

void SnapshotFile::CheckFooter(const SnapshotFileInfo& expected) {
  constexpr uint64_t kSmallest = sizeof(WireHeader) + sizeof(WireFooter);
  if (file_.size() < kSmallest) {
    Refuse(0, "a snapshot file takes at least " + std::to_string(kSmallest) + " bytes, this one has " +
                  std::to_string(file_.size()));
  }
  const uint64_t offset = file_.size() - sizeof(WireFooter);
  WireFooter footer;
  file_.ReadAt(offset, reinterpret_cast<char*>(&footer), sizeof(footer));
  if (footer.magic != kFooterMagic) Refuse(offset, "no footer: not a snapshot file, or its end is missing");
  if (footer.version != kVersion) {
    Refuse(offset, "snapshot file version " + std::to_string(footer.version) + ", this build reads version 1");
  }
  if (footer.zero != 0 || footer.crc != Crc32c(&footer, kFooterCovered))
    Refuse(offset, "checksum of the footer does not match");
  if (footer.snapshot_id != expected.snapshot_id)
    Refuse(offset, "the file belongs to another snapshot than the manifest");
  if (footer.begin != expected.begin || footer.end != expected.end) {
    Refuse(offset, "the file holds buckets " + Range(footer.begin, footer.end) + ", the manifest has " +
                       Range(expected.begin, expected.end));
  }
  if (footer.index_crc != expected.index_crc) Refuse(offset, "checksum of the index differs from the manifest's");
  const uint64_t room = offset - sizeof(WireHeader);
  if (footer.index_entries > room / sizeof(WireEntry) ||
      footer.index_offset != offset - footer.index_entries * sizeof(WireEntry)) {
    Refuse(offset, "index of " + std::to_string(footer.index_entries) + " entries at " +
                       std::to_string(footer.index_offset) + " does not end where the footer begins");
  }
  index_offset_ = footer.index_offset;
  index_entries_ = footer.index_entries;
}

void SnapshotFile::CheckHeader(const SnapshotFileInfo& expected) const {
  WireHeader header;
  file_.ReadAt(0, reinterpret_cast<char*>(&header), sizeof(header));
  if (header.magic != kHeaderMagic) Refuse(0, "not a snapshot file (bad magic number)");
  if (header.version != kVersion) {
    Refuse(4, "snapshot file version " + std::to_string(header.version) + ", this build reads version 1");
  }
  if (header.zero != 0 || header.zero_tail != 0 || header.crc != Crc32c(&header, kHeaderCovered)) {
    Refuse(0, "checksum of the header does not match");
  }
  if (header.snapshot_id != expected.snapshot_id || header.begin != expected.begin || header.end != expected.end) {
    Refuse(8, "header and footer belong to different files");
  }
}

void SnapshotFile::ReadIndex(const SnapshotFileInfo& expected) {
  std::vector<WireEntry> entries(index_entries_);
  const size_t size = entries.size() * sizeof(WireEntry);
  file_.ReadAt(index_offset_, reinterpret_cast<char*>(entries.data()), size);
  if (Crc32c(entries.data(), size) != expected.index_crc) Refuse(index_offset_, "checksum of the index does not match");
  blocks_.reserve(entries.size());
  uint64_t next = sizeof(WireHeader);
  uint32_t bucket = expected.begin;
  for (size_t i = 0; i < entries.size(); ++i) {
    const WireEntry& entry = entries[i];
    const uint64_t at = index_offset_ + i * sizeof(WireEntry);
    if (entry.offset != next || entry.length > index_offset_ - next)
      Refuse(at, "index entry does not follow the one before it");
    if (entry.bucket < bucket || entry.bucket >= expected.end)
      Refuse(at + 16, "index entry of a bucket out of order or out of range");
    if (entry.kind < 1 || entry.kind > 4 || entry.zero != 0) Refuse(at + 28, "index entry of an unknown kind");
    next += entry.length;
    bucket = entry.bucket;
    blocks_.push_back({entry.offset, entry.length, entry.bucket, entry.table, entry.rows,
                       static_cast<BlockKind>(entry.kind), entry.crc});
  }
  if (next != index_offset_) Refuse(next, "bytes between the last row block and the index");
}

std::string_view SnapshotFile::Read(size_t first, size_t last, TransferBuffer* memory) const {
  const uint64_t begin = blocks_[first].offset;
  const uint64_t end = blocks_[last - 1].offset + blocks_[last - 1].length;
  return file_.ReadInto(begin, end - begin, memory);
}

RowBlockView SnapshotFile::View(size_t index, size_t first, std::string_view memory) const {
  const BlockEntry& entry = blocks_[index];
  const std::string_view bytes = memory.substr(entry.offset - blocks_[first].offset, entry.length);
  const RowBlockView view(bytes, QuotedFile(file_.path()), entry.offset);
  const RowBlockHeader& header = view.header();
  if (RowBlockChecksum(bytes) != entry.crc || header.bucket != entry.bucket || header.table != entry.table ||
      header.count != entry.rows || header.kind != entry.kind) {
    Refuse(entry.offset, "the row block here is not the one the index announces");
  }
  return view;
}

}  // namespace monolith
