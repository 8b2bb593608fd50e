// Rows and removals after a mark, bucket by bucket, in their state at the time they are read.
//
// Used by one thread, concurrently with writers; must not outlive its group. Next() throws kFailedPrecondition once the
// history after the mark was dropped, rather than omit removals.
#pragma once

#include <cstdint>
#include <string>

#include "format/block_source.h"
#include "table/changed_rows.h"
#include "table/group.h"

namespace monolith {

class ChangeSource final : public BlockSource {
 public:
  ChangeSource(Group& group, uint64_t since, uint32_t begin, uint32_t end, bool state)
      : group_(group), since_(since), state_(state), bucket_(begin), end_(end) {}

  bool Next(std::string* block) override;

 private:
  Table& table() { return *group_.tables_[table_]; }
  TableShard& shard() { return table().shards[bucket_]; }
  // First row epoch of the changes to read; only valid until the call leaves the gate.
  uint32_t First() const;
  // Moves to the next shard that has changes, within a bounded number of shards; true when removals there made a block.
  bool Advance(std::string* block);
  bool ToNextShard();
  // Writes the next rows of the current shard.
  bool Rows(std::string* block);
  uint32_t MostRows();

  Group& group_;
  const uint64_t since_;
  const bool state_;
  uint32_t bucket_;
  const uint32_t end_;
  size_t table_ = 0;
  bool has_begun_ = false;
  ChangedRows rows_;
};

}  // namespace monolith
