// Ids of texts that are stored end to end.
#include "data/text_ids.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string_view.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "base/city_hash.h"
#include "bindings.h"
#include "vector_array.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names only

namespace monolith {
namespace {

using ByteArray = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename Offset>
using OffsetArray = nb::ndarray<const Offset, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename Offset>
VectorArray<int64_t> IdsOfTexts(std::string_view column, const ByteArray& bytes, const OffsetArray<Offset>& offsets) {
  const std::string_view view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return ArrayOf(
      WithoutGil([&] { return TextIds(column, view, std::span<const Offset>(offsets.data(), offsets.size())); }));
}

}  // namespace

void BindTextIds(nb::module_& m) {
  m.def("city_hash64", [](const nb::bytes& text) { return CityHash64({text.c_str(), text.size()}); }, "text"_a);
  m.def(
      "text_id",
      [](std::string_view column, const nb::bytes& text) { return TextId(column, {text.c_str(), text.size()}); },
      "column"_a, "text"_a);
  m.def("text_ids", &IdsOfTexts<int32_t>, "column"_a, "bytes"_a.noconvert(), "offsets"_a.noconvert());
  m.def("text_ids", &IdsOfTexts<int64_t>, "column"_a, "bytes"_a.noconvert(), "offsets"_a.noconvert());
}

}  // namespace monolith
