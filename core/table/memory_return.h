// Gives the memory of a table back to the system when most of its rows are gone.
//
// Rows stay where they are: pages on which no row is left are given back and read as zero, and the lines of the index
// are made anew for the rows that there are. Callers are alone behind the group's gate.
#pragma once

#include "table/table.h"

namespace monolith {

// True iff more than half of the records in memory hold no row, and it is a matter of megabytes.
bool WastesMemory(const Table& table);
void ReturnUnusedMemory(Table& table);

}  // namespace monolith
