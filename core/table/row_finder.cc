#include "table/row_finder.h"

namespace monolith {

std::byte* RowFinder::Search(const Table& table, int i, uint32_t* row) const {
  const IndexShape shape = table.index.ShapeOf(bucket(i));
  *row = RowIndex::Find(shape, hashes_[i], HomeLine(shape, i),
                        [&](uint32_t each) { return TableShard::Holds(table.rows, each, ids_[i]); });
  return *row == kNoRow ? nullptr : table.rows.AtAllocated(*row);
}

}  // namespace monolith
