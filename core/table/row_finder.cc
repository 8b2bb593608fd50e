#include "table/row_finder.h"

namespace monolith {

namespace {

IndexLine no_line{};  // stays empty

}  // namespace

IndexLine* const RowFinder::kNoSegment = &no_line;

std::byte* RowFinder::Search(const Table& table, int i, uint32_t* row) const {
  *row = RowIndex::Find(table.heads[bucket(i)].shape(), hashes_[i],
                        [&](uint32_t each) { return TableShard::Holds(table.rows, each, ids_[i]); });
  return *row == kNoRow ? nullptr : table.rows.AtAllocated(*row);
}

}  // namespace monolith
