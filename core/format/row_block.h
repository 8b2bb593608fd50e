// The one contiguous byte format of rows: used by snapshot files, delta logs and the parameter-server protocol. Byte
// grammar: docs/formats/row_block.md. A block holds rows (or tombstones, or the filter) of one table and one bucket.
//
// RowBlockBuilder and RowBlockView are values used by one thread at a time. A builder owns its buffer until Finish();
// a view owns nothing and is valid as long as the bytes it was made from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace monolith {

// Persisted: do not change the values of existing entries.
enum class BlockKind : uint8_t {
  kFull = 1,       // payload of a row: weights f32[dim], then optimizer state
  kServing = 2,    // payload of a row: compressed segments end to end
  kTombstone = 3,  // no payload; times hold the epoch of the removal
  kFilter = 4,     // no keys; the payload is one FilterSlice::Save()
};

struct RowBlockHeader {
  BlockKind kind = BlockKind::kFull;
  uint64_t digest = 0;  // of the table's schema text; 0 for filters
  uint32_t table = 0;   // number of the table in the group; 0 for filters
  uint32_t bucket = 0;
  uint32_t count = 0;  // rows; set by the builder
  uint32_t payload_bytes_per_row = 0;
  uint64_t payload_bytes = 0;  // set by the builder
  uint64_t epoch = 0;
};

// Returns the number of bytes of a block with this header. REQUIRES: count and payload_bytes are set and do not
// overflow 2^63.
uint64_t RowBlockBytes(const RowBlockHeader& header);

// Returns the checksum stored at the end of a block. REQUIRES: `block` is exactly one complete block.
uint32_t RowBlockChecksum(std::string_view block);

// Writes each row once: room is allocated for `max_rows`, and only a block that ends up with fewer rows is compacted.
//   RowBlockBuilder builder(header, live_rows, std::move(*block));
//   for (...) std::memcpy(builder.Add(key, time), row, row_bytes);
//   *block = builder.Finish();
class RowBlockBuilder {
 public:
  static constexpr uint32_t kMaxRows = 1u << 30;

  // `header.count` and `header.payload_bytes` are ignored. `memory` is only used for its capacity, so that a caller
  // that builds block after block does not allocate. REQUIRES: max_rows <= kMaxRows; kind is not kFilter
  // (BuildFilterBlock); tombstones have payload_bytes_per_row 0.
  RowBlockBuilder(const RowBlockHeader& header, uint32_t max_rows, std::string memory = {});

  // Returns the destination of the payload of this row: payload_bytes_per_row bytes, at no particular alignment; valid
  // until Finish(). REQUIRES: fewer than max_rows rows so far.
  std::byte* Add(int64_t key, uint32_t time) {
    char* base = bytes_.data();
    std::memcpy(base + keys_offset_ + 8 * uint64_t{count_}, &key, 8);
    std::memcpy(base + times_offset_ + 4 * uint64_t{count_}, &time, 4);
    char* payload = base + payload_offset_ + uint64_t{header_.payload_bytes_per_row} * count_;
    ++count_;
    return reinterpret_cast<std::byte*>(payload);
  }

  uint32_t count() const { return count_; }
  uint32_t max_rows() const { return max_rows_; }

  // Returns the finished block, checksum included. The builder is empty afterwards and can only be destroyed.
  std::string Finish();

 private:
  void CloseGap();

  RowBlockHeader header_;
  uint32_t max_rows_;
  uint32_t count_ = 0;
  uint64_t keys_offset_;
  uint64_t times_offset_;
  uint64_t payload_offset_;
  std::string bytes_;
};

// Builds a filter block: table 0, no keys, `filter` (FilterSlice::Save()) as payload.
std::string BuildFilterBlock(uint32_t bucket, uint64_t epoch, std::string_view filter, std::string memory = {});

// A parsed block. Construction checks everything that follows from the bytes alone: magic, version, kind, sizes against
// the buffer and against each other, reserved zeros, checksum. The loader checks whether digest, table and row size fit
// a group.
class RowBlockView {
 public:
  // `bytes` is exactly one block. `origin` and `offset` name its source, for messages only. Throws Error(kDataLoss)
  // with origin, offset and reason.
  explicit RowBlockView(std::string_view bytes, std::string_view origin = "row block", uint64_t offset = 0);

  // For bytes that this process has just built or checked: everything but the checksum is checked.
  struct Trusted {};
  RowBlockView(std::string_view bytes, Trusted);

  // Returns the header of the block at the start of `bytes`, which may continue after the block (RowBlockBytes()
  // returns the block's size); checks the header and that the block fits, not the checksum. Throws as the constructor
  // does.
  static RowBlockHeader HeaderAt(std::string_view bytes, std::string_view origin = "row block", uint64_t offset = 0);

  // Returns the same rows under another table number: groups number their tables by sorted name, so numbers differ
  // between groups.
  RowBlockView WithTable(uint32_t table) const {
    RowBlockView view = *this;
    view.header_.table = table;
    return view;
  }

  // Views of blocks that are given one by one, and of those that lie end to end in `bytes`; all of them checked. An
  // offset in an error about the latter counts from the beginning of `bytes`.
  static std::vector<RowBlockView> AllOf(std::span<const std::string_view> blocks);
  static std::vector<RowBlockView> AllIn(std::string_view bytes);

  const RowBlockHeader& header() const { return header_; }
  uint32_t count() const { return header_.count; }
  int64_t key(uint32_t row) const {
    int64_t key;
    std::memcpy(&key, keys_ + 8 * uint64_t{row}, 8);
    return key;
  }
  // Unix seconds of the last update; for tombstones the epoch of the removal.
  uint32_t time(uint32_t row) const {
    uint32_t time;
    std::memcpy(&time, times_ + 4 * uint64_t{row}, 4);
    return time;
  }
  const std::byte* payload(uint32_t row) const {
    return reinterpret_cast<const std::byte*>(payload_) + uint64_t{header_.payload_bytes_per_row} * row;
  }
  // The complete payload area; for filter blocks the filter's bytes.
  std::string_view payload_bytes() const { return {payload_, header_.payload_bytes}; }

 private:
  void Parse(std::string_view bytes, std::string_view origin, uint64_t offset);

  RowBlockHeader header_;
  const char* keys_;
  const char* times_;
  const char* payload_;
};

// Returns the offsets of the blocks that lie end to end in `bytes`, and their end; checks headers, not checksums.
// Throws as RowBlockView does.
std::vector<int64_t> PackedBlockOffsets(std::string_view bytes);

}  // namespace monolith
