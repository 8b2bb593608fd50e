// What an ExampleBatch record becomes in a batch, in bytes: a shared list stands in every row, so that a record of two
// kilobytes can ask for gigabytes. Pure functions.
#pragma once

#include <cstdint>

#include "data/sample_reader.h"
#include "data/schema.h"

namespace monolith {

// What every row takes, whatever it holds: its cells, the splits of its lists and its dense numbers.
int64_t BytesPerRow(const Schema& schema);

// The above and the values, of rows that have been read. Stops counting where it is more than `most`.
int64_t ParsedBytes(const Schema& schema, RowCells row, int64_t rows, int64_t most);

}  // namespace monolith
