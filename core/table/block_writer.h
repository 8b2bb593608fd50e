// Turns rows of one table and bucket into the payload of row blocks. A value used by one thread, under no lock of its
// own.
#pragma once

#include "format/row_block.h"
#include "table/group.h"

namespace monolith {

class BlockWriter {
 public:
  static constexpr uint32_t kRowsPerBlock = 4096;

  // `state` false gives serving blocks: the weights only, compressed as the table's segments say.
  BlockWriter(const Table& table, uint32_t bucket, bool state, uint64_t epoch, uint32_t max_rows, std::string memory);

  void Add(const std::byte* record);
  uint32_t count() const { return builder_.count(); }
  uint32_t max_rows() const { return builder_.max_rows(); }
  bool IsFull() const { return builder_.count() == builder_.max_rows(); }
  std::string Finish() { return builder_.Finish(); }

 private:
  const TableSpec& spec_;
  const bool compress_;
  const size_t payload_bytes_;
  RowBlockBuilder builder_;
};

// Which removals are wanted, by row epoch, and the epoch that these count from.
struct RemovalRange {
  uint32_t first;
  uint32_t last;
  uint64_t base;
};

// Wanted tombstones of one table in a bucket, as one block; false and nothing when there are none.
bool BuildTombstoneBlock(const Table& table, uint32_t bucket, const std::vector<Tombstone>& tombstones,
                         const RemovalRange& wanted, uint64_t epoch, std::string* block);

}  // namespace monolith
