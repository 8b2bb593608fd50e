// Texts of requests and answers of a server.
#include "serving/request_text.h"

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

// An object of Python that is written before anyone sees it; nothing where the text is no base64.
std::optional<nb::bytes> Decoded(std::string_view text) {
  const auto size = DecodedSize(text);
  if (!size) return std::nullopt;
  nb::bytes bytes = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(*size)));
  if (!bytes.is_valid()) throw nb::python_error();
  if (!DecodeBase64(text, PyBytes_AsString(bytes.ptr()))) return std::nullopt;
  return bytes;
}

// (bytes of the long text, the document with `mark` in its place)
std::optional<nb::tuple> CutLongText(const nb::bytes& document, const nb::bytes& mark) {
  const std::string_view whole(document.c_str(), document.size());
  const auto part = FindLongText(whole);
  if (!part) return std::nullopt;
  const auto decoded = Decoded(whole.substr(part->begin, part->end - part->begin));
  if (!decoded) return std::nullopt;
  std::string rest(whole.substr(0, part->begin));
  rest.append(mark.c_str(), mark.size()).append(whole.substr(part->end));
  return nb::make_tuple(*decoded, nb::bytes(rest.data(), rest.size()));
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
  m.def("cut_long_text", &CutLongText, "document"_a, "mark"_a);
  m.def("json_of_floats", &JsonBytesOfFloats, "address"_a, "count"_a, "width"_a);
}

}  // namespace monolith
