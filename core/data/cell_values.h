// Decodes the values of cells straight into a batch. Pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "data/cell.h"

namespace monolith {

// Label of a task without one: the lowest finite float.
inline constexpr float kInvalidLabel = -3.4028234663852886e38f;

// Number of values of a cell; those of all inner lists together for lists of lists.
int64_t CountValues(const Cell& cell);
// Number of inner lists, for lists of lists.
int64_t CountLists(const Cell& cell);

// Writes CountValues(cell) integers. v1 ids become v2 ids; a slot >= 0 replaces the slot in the ids, and reals become
// the id of their magnitude, floor(log2(|x| + 1)).
void DecodeInts(const Cell& cell, int64_t slot, int64_t* to);
// Writes the length of each inner list.
void DecodeListLengths(const Cell& cell, int64_t* to);
// Writes at most `most` numbers and returns their number.
int64_t DecodeFloats(const Cell& cell, int64_t most, float* to);
int64_t DecodeFirstInts(const Cell& cell, int64_t most, int64_t* to);
// Returns the first byte string, empty when there is none.
std::string_view FirstBytes(const Cell& cell);

}  // namespace monolith
