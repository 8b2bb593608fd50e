// Statistics of one table as Python sees them.
#pragma once

#include <nanobind/nanobind.h>

#include "table/group.h"

namespace monolith {

// REQUIRES: the GIL is held.
inline nanobind::dict DictOf(const TableStats& stats) {
  nanobind::dict result;
  result["rows"] = stats.rows;
  result["evicted"] = stats.evicted;
  result["row_bytes"] = stats.row_bytes;
  result["index_bytes"] = stats.index_bytes;
  result["other_bytes"] = stats.other_bytes;
  result["tombstones"] = stats.tombstones;
  result["index_load"] = stats.index_load;
  result["overhead_per_id"] = stats.overhead_per_id;
  return result;
}

}  // namespace monolith
