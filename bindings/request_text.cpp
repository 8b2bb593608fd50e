// Texts of requests and answers of a server.
#include "serving/request_text.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names only

namespace monolith {
namespace {

using FloatArray = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::optional<nb::bytes> BytesOf(const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  return nb::bytes(text->data(), text->size());
}

std::optional<nb::bytes> DecodeBase64Part(const nb::bytes& text, size_t begin, size_t end) {
  const std::string_view whole(text.c_str(), text.size());
  if (begin > end || end > whole.size()) return std::nullopt;
  return BytesOf(DecodeBase64(whole.substr(begin, end - begin)));
}

std::optional<nb::bytes> JsonBytesOfFloats(const FloatArray& values, size_t width) {
  if (width > 0 && values.size() % width != 0) return std::nullopt;
  return BytesOf(JsonOfFloats(std::span<const float>(values.data(), values.size()), width));
}

}  // namespace

void BindRequestText(nb::module_& m) {
  m.def("decode_base64", &DecodeBase64Part, "text"_a, "begin"_a, "end"_a);
  m.def(
      "example_batch_size",
      [](const nb::bytes& encoded) { return ExampleBatchSize({encoded.c_str(), encoded.size()}); }, "encoded"_a);
  m.def("json_of_floats", &JsonBytesOfFloats, "values"_a.noconvert(), "width"_a);
}

}  // namespace monolith
