// Serialises rows of one table and bucket into the payload of row blocks. Used by one thread; takes no lock itself.
#pragma once

#include "format/row_block.h"
#include "table/group.h"

namespace monolith {

class BlockWriter {
 public:
  static constexpr uint32_t kRowsPerBlock = 4096;

  // With `state` false it writes serving blocks: the weights only, compressed by the table's segments.
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

// Range of row epochs of the removals to write, and the epoch from which they are counted.
struct RemovalRange {
  uint32_t first;
  uint32_t last;
  uint64_t base;
};

// Writes the tombstones of one table and bucket that lie in the range as one block. Returns false and writes nothing if
// there are none.
bool BuildTombstoneBlock(const Table& table, uint32_t bucket, const std::vector<Tombstone>& tombstones,
                         const RemovalRange& wanted, uint64_t epoch, std::string* block);

}  // namespace monolith
