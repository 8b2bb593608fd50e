// Conversion of columns and parsed batches to Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "data/batch_parser.h"
#include "data/schema.h"
#include "vector_array.h"

namespace monolith {

// Name, kind, width, slot.
inline std::vector<ColumnSpec> SpecsOf(const std::vector<std::tuple<std::string, int, int64_t, int64_t>>& columns) {
  std::vector<ColumnSpec> specs;
  for (const auto& [name, kind, width, slot] : columns) {
    specs.push_back({name, static_cast<ColumnKind>(kind), width, slot});
  }
  return specs;
}

using TextLists = nanobind::typed<nanobind::list, nanobind::typed<nanobind::list, nanobind::bytes>>;

// The arrays in the order of ParsedBatch, then the skipped records.
using BatchTuple =
    std::tuple<int64_t, VectorArray<int64_t>, VectorArray<int64_t>, VectorArray<float>, VectorArray<int64_t>,
               VectorArray<float>, VectorArray<int64_t>, TextLists, VectorArray<int64_t>, std::vector<std::string>>;

// REQUIRES: the GIL is held.
inline BatchTuple TupleOfBatch(ParsedBatch&& batch) {
  nanobind::list columns;
  for (const std::vector<std::string>& texts : batch.texts) {
    nanobind::list column;
    for (const std::string& text : texts) column.append(nanobind::bytes(text.data(), text.size()));
    columns.append(column);
  }
  return {batch.rows,
          ArrayOf(std::move(batch.ragged_ints)),
          ArrayOf(std::move(batch.ragged_int_splits)),
          ArrayOf(std::move(batch.ragged_floats)),
          ArrayOf(std::move(batch.ragged_float_splits)),
          ArrayOf(std::move(batch.dense_floats)),
          ArrayOf(std::move(batch.dense_ints)),
          TextLists(columns),
          ArrayOf(std::move(batch.bad_records)),
          std::move(batch.problems)};
}

}  // namespace monolith
