// Conversion of samples or columns of ids to the inputs of a model.
#include "serving/input_layout.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings.h"
#include "parsed_batch.h"
#include "vector_array.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names only

namespace monolith {
namespace {

using SliceTuple = std::tuple<int, int, int>;
// Ids and splits as addresses, which cost less than arrays; ids of each row or -1, number of ids, rows.
using ColumnTuple = std::tuple<uintptr_t, int64_t, int64_t, uintptr_t, int64_t>;
using RecordTuple = nb::typed<nb::tuple, nb::bytes, nb::ellipsis>;
using GroupTuple = nb::typed<nb::tuple, Group, nb::ellipsis>;
// Examples, ids, ids found, outputs end to end, columns of numbers.
using LaidOutTuple = std::tuple<int64_t, int64_t, int64_t, VectorArray<float>, std::optional<BatchTuple>>;

struct FeatureArgument {
  std::string name;
  std::string column;
  int group, table, dim, pooling;
  int64_t places;
  std::tuple<uint64_t, uint64_t, uint64_t, uint64_t> bits;
  std::optional<int64_t> padding;
};

std::vector<const Group*> GroupsOf(const nb::tuple& groups) {
  std::vector<const Group*> pointers;
  for (nb::handle group : groups) pointers.push_back(nb::cast<const Group*>(group));
  return pointers;
}

LaidOutTuple TupleOf(LaidOutInputs&& inputs, bool has_numbers) {
  auto* owned = new Buffer<float>(std::move(inputs.outputs));
  const nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<Buffer<float>*>(p); });
  std::optional<BatchTuple> numbers;
  if (has_numbers) numbers = TupleOfBatch(std::move(inputs.numbers));
  return {inputs.num_examples, inputs.num_ids, inputs.num_found,
          VectorArray<float>(owned->data(), {owned->size()}, owner), std::move(numbers)};
}

std::vector<std::string_view> RecordsOf(const RecordTuple& given) {
  std::vector<std::string_view> records;
  for (nb::handle record : given) {
    const auto bytes = nb::cast<nb::bytes>(record);
    records.emplace_back(bytes.c_str(), bytes.size());
  }
  return records;
}

std::vector<IdColumn> ColumnsOf(const std::vector<ColumnTuple>& given) {
  std::vector<IdColumn> columns;
  for (const auto& [address, count, per_row, splits, rows] : given) {
    columns.push_back({{reinterpret_cast<const int64_t*>(address), static_cast<size_t>(count)},
                       per_row,
                       reinterpret_cast<const int64_t*>(splits),
                       rows});
  }
  return columns;
}

LaidOutTuple FromRecords(const InputLayout& self, int format, const RecordTuple& given, const GroupTuple& groups,
                         int64_t step) {
  const std::vector<std::string_view> records = RecordsOf(given);
  const std::vector<const Group*> pointers = GroupsOf(groups);
  LaidOutInputs inputs =
      WithoutGil([&] { return self.FromRecords(static_cast<SampleFormat>(format), records, pointers, step); });
  return TupleOf(std::move(inputs), self.has_numbers());
}

LaidOutTuple FromColumns(const InputLayout& self, const std::vector<ColumnTuple>& columns, int64_t num_examples,
                         const GroupTuple& groups, int64_t step) {
  const std::vector<IdColumn> ids = ColumnsOf(columns);
  const std::vector<const Group*> pointers = GroupsOf(groups);
  LaidOutInputs inputs = WithoutGil([&] { return self.FromColumns(ids, num_examples, pointers, step); });
  return TupleOf(std::move(inputs), false);
}

// Keys, buckets, splits of each feature.
using KeyTuples = std::vector<std::tuple<VectorArray<int64_t>, VectorArray<uint16_t>, VectorArray<int64_t>>>;

KeyTuples TuplesOf(std::vector<FeatureKeys>&& features) {
  KeyTuples tuples;
  for (FeatureKeys& each : features)
    tuples.emplace_back(ArrayOf(std::move(each.keys)), ArrayOf(std::move(each.buckets)),
                        ArrayOf(std::move(each.splits)));
  return tuples;
}

KeyTuples KeysOfRecords(const InputLayout& self, int format, const RecordTuple& given) {
  const std::vector<std::string_view> records = RecordsOf(given);
  return TuplesOf(WithoutGil([&] { return self.KeysOfRecords(static_cast<SampleFormat>(format), records); }));
}

KeyTuples KeysOfColumns(const InputLayout& self, const std::vector<ColumnTuple>& given) {
  const std::vector<IdColumn> columns = ColumnsOf(given);
  return TuplesOf(WithoutGil([&] { return self.KeysOfColumns(columns); }));
}

std::vector<Output> OutputsOf(const std::vector<std::tuple<int, std::vector<SliceTuple>>>& given) {
  std::vector<Output> outputs;
  for (const auto& [form, slices] : given) {
    Output& output = outputs.emplace_back(Output{static_cast<OutForm>(form), {}});
    for (const auto& [feature, begin, end] : slices) output.slices.push_back({feature, begin, end});
  }
  return outputs;
}

std::vector<InputFeature> FeaturesOf(const std::vector<FeatureArgument>& given) {
  std::vector<InputFeature> features;
  for (const FeatureArgument& each : given) {
    const auto& [taken, given_bits, forbidden, wide] = each.bits;
    features.push_back({each.name, each.column, each.group, each.table, each.dim, static_cast<Pooling>(each.pooling),
                        each.places, SlotBits{taken, given_bits, forbidden, wide}, each.padding});
  }
  return features;
}

}  // namespace

void BindInputLayout(nb::module_& m) {
  nb::class_<FeatureArgument>(m, "InputFeature")
      .def(
          "__init__",
          [](FeatureArgument* self, std::string name, std::string column, int group, int table, int dim, int pooling,
             int64_t places, std::tuple<uint64_t, uint64_t, uint64_t, uint64_t> bits, std::optional<int64_t> padding) {
            new (self)
                FeatureArgument{std::move(name), std::move(column), group, table, dim, pooling, places, bits, padding};
          },
          nb::kw_only(), "name"_a, "column"_a, "group"_a, "table"_a, "dim"_a, "pooling"_a, "places"_a, "bits"_a,
          "padding"_a.none());
  nb::class_<InputLayout>(m, "InputLayout")
      .def(
          "__init__",
          [](InputLayout* self, const std::vector<FeatureArgument>& features,
             const std::vector<std::tuple<int, std::vector<SliceTuple>>>& outputs,
             const std::vector<std::tuple<std::string, int, int64_t, int64_t>>& numbers, int64_t max_parsed_bytes,
             int64_t max_output_bytes) {
            new (self) InputLayout(FeaturesOf(features), OutputsOf(outputs), SpecsOf(numbers),
                                   {max_parsed_bytes, max_output_bytes});
          },
          nb::kw_only(), "features"_a, "outputs"_a, "numbers"_a, "max_parsed_bytes"_a, "max_output_bytes"_a)
      .def("from_records", &FromRecords, "format"_a, "records"_a, "groups"_a, "step"_a)
      .def("from_columns", &FromColumns, "columns"_a, "num_examples"_a, "groups"_a, "step"_a)
      .def("keys_of_records", &KeysOfRecords, "format"_a, "records"_a)
      .def("keys_of_columns", &KeysOfColumns, "columns"_a);
}

}  // namespace monolith
