// Texts of requests and answers of a server.
#include "serving/request_text.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "serving/json_request.h"
#include "vector_array.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names only

namespace monolith {
namespace {

template <typename T>
nb::object ArrayOrNone(std::vector<T> values) {
  return values.empty() ? nb::none() : nb::cast(ArrayOf(std::move(values)));
}

// (name, kinds, rows, widths of lists by depth, ends of rows, integers, real numbers, texts, their ends)
nb::tuple ColumnTuple(JsonColumn column) {
  nb::list widths;
  std::vector<int64_t> splits;
  for (auto& level : column.levels) {
    if (level.num_lists == 0) break;
    widths.append(level.differs ? -1 : level.width);
    if (splits.empty()) splits = std::move(level.splits);
  }
  const bool has_texts = (column.kinds & (kJsonText | kJsonBytes)) != 0;
  return nb::make_tuple(column.name, column.kinds, column.num_rows, widths, ArrayOrNone(std::move(splits)),
                        ArrayOrNone(std::move(column.whole)), ArrayOrNone(std::move(column.real)),
                        has_texts ? nb::object(nb::bytes(column.bytes.data(), column.bytes.size())) : nb::none(),
                        has_texts ? nb::cast(ArrayOf(std::move(column.offsets))) : nb::none());
}

// (signature, whether it has rows, whether its columns are named, columns)
nb::tuple ParsedRequest(const nb::bytes& body, int max_depth, size_t max_columns) {
  JsonRequest request =
      WithoutGil([&] { return ParseJsonRequest({body.c_str(), body.size()}, max_depth, max_columns); });
  nb::list columns;
  for (auto& column : request.columns) columns.append(ColumnTuple(std::move(column)));
  return nb::make_tuple(request.signature, request.is_rows, request.is_named, columns);
}

std::optional<nb::bytes> JsonBytesOfFloats(uintptr_t address, size_t count, size_t width) {
  if (width > 0 && count % width != 0) return std::nullopt;
  const auto text = JsonOfFloats({reinterpret_cast<const float*>(address), count}, width);
  if (!text) return std::nullopt;
  return nb::bytes(text->data(), text->size());
}

}  // namespace

void BindRequestText(nb::module_& m) {
  m.def(
      "example_batch_size",
      [](const nb::bytes& encoded) { return ExampleBatchSize({encoded.c_str(), encoded.size()}); }, "encoded"_a);
  m.def("parse_json_request", &ParsedRequest, "body"_a, "max_depth"_a, "max_columns"_a);
  m.def("json_of_floats", &JsonBytesOfFloats, "address"_a, "count"_a, "width"_a);
}

}  // namespace monolith
