// Returns the memory of a table to the system after most of its rows were removed.
//
// Rows stay in place: pages that hold no row are released and read as zero, and the index lines are rebuilt for the
// remaining rows. Callers have exclusive access through the group's gate.
#pragma once

#include "table/table.h"

namespace monolith {

// True iff more than half of the records in memory hold no row, and they take at least some megabytes.
bool WastesMemory(const Table& table);
void ReturnUnusedMemory(Table& table);

}  // namespace monolith
