// Views of the values of each column in the records of a batch: the first of the two passes of data/batch_parser.h.
// Values; valid as long as the records and the schema they were read with.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/cell.h"
#include "data/schema.h"

namespace monolith {

// A cell for each row, source after source.
struct BatchCells {
  std::vector<Cell> cells;
  std::vector<int64_t> first_row;     // of each record, and the end
  std::vector<std::string> problems;  // of each record, empty when it is good
  std::vector<int64_t> good_rows;     // of good records only; empty when all are good
  bool all_good = true;
  std::vector<Arena> arenas;  // memory of cells whose bytes are not contiguous in a record

  int64_t num_rows() const { return first_row.back(); }
  int64_t num_good() const { return all_good ? num_rows() : static_cast<int64_t>(good_rows.size()); }
};

// Iterates over the good rows of one source.
class SourceCells {
 public:
  SourceCells(const BatchCells& cells, int source)
      : cells_(source < 0 ? nullptr : cells.cells.data() + source * cells.num_rows()),
        rows_(cells.all_good ? nullptr : cells.good_rows.data()) {}

  const Cell& operator[](int64_t row) const {
    static const Cell kAbsent{};
    return cells_ == nullptr ? kAbsent : cells_[rows_ == nullptr ? row : rows_[row]];
  }

 private:
  const Cell* cells_;
  const int64_t* rows_;
};

// Reads all records, on all threads of the pool, and records the problems of bad ones. `most_bytes`: limit of the
// parsed size of an ExampleBatch record (ParseOptions). Throws kResourceExhausted if the rows of all have more cells
// than `most_cells`.
BatchCells ReadBatchCells(const Schema& schema, std::span<const std::string_view> records, int64_t most_bytes,
                          int64_t most_cells = int64_t{1} << 28);

}  // namespace monolith
