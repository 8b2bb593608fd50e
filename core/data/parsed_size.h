// Size of an ExampleBatch record in a batch, in bytes: a shared list is repeated in every row, so that a record of two
// kilobytes can request gigabytes. Pure functions.
#pragma once

#include <cstdint>

#include "data/sample_reader.h"
#include "data/schema.h"

namespace monolith {

// Bytes of every row, whatever it holds: its cells, the splits of its lists and its dense numbers.
int64_t BytesPerRow(const Schema& schema);

// BytesPerRow() and the values, of rows that have been read. Stops counting above `most`.
int64_t ParsedBytes(const Schema& schema, RowCells row, int64_t rows, int64_t most);

}  // namespace monolith
