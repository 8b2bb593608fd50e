// Parses serialized samples into the arrays of a batch, on all threads of the pool. Results do not depend on their
// number.
//
// Two passes: the first finds the values of each column in the records (data/sample_reader.h), the second decodes them
// straight into arrays of the right size (data/cell_values.h). Nothing else is copied or allocated per value.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/batch_cells.h"
#include "data/schema.h"

namespace monolith {

// Arrays of one type lie end to end, in the order of the schema's columns; ragged ones have rows + 1 splits each, and a
// column of lists of lists has two: its ids, then the lengths of its lists.
struct ParsedBatch {
  int64_t rows = 0;
  std::vector<int64_t> ragged_ints;
  std::vector<int64_t> ragged_int_splits;
  std::vector<float> ragged_floats;
  std::vector<int64_t> ragged_float_splits;
  std::vector<float> dense_floats;
  std::vector<int64_t> dense_ints;
  std::vector<std::vector<std::string>> texts;
  // Records that were skipped, and why.
  std::vector<int64_t> bad_records;
  std::vector<std::string> problems;
};

// At most this many problems are described; all are counted.
inline constexpr size_t kMostProblems = 16;

struct ParseOptions {
  bool skip_bad = false;  // skip bad records, instead of throwing for the first one
  // Limit of the size of an ExampleBatch record in the batch, with a shared list in every row; a larger record is bad.
  int64_t max_parsed_bytes = int64_t{1} << 27;
};

// Throws kDataLoss naming the record for the first bad one, unless bad ones are skipped; kResourceExhausted for a batch
// that is too large for memory, which hostile samples can request in a few bytes.
ParsedBatch ParseBatch(const Schema& schema, std::span<const std::string_view> records, const ParseOptions& options);

// Returns the arrays of some of the columns, of records that have been read. Throws kResourceExhausted as above.
ParsedBatch FillBatch(std::span<const Column> columns, const BatchCells& cells);

}  // namespace monolith
