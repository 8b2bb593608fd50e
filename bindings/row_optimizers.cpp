// The properties of each row optimizer.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <map>
#include <string>

#include "bindings.h"
#include "optimizer/kinds.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names only

namespace monolith {
namespace {

using KindDict = nb::typed<nb::dict, nb::str, RowOptimizerKind>;

KindDict AllKinds() {
  nb::dict kinds;
  for (const RowOptimizerKind& kind : RowOptimizerKinds()) {
    kinds[nb::str(kind.name.data(), kind.name.size())] = nb::cast(kind);
  }
  return KindDict(kinds);
}

}  // namespace

void BindRowOptimizers(nb::module_& m) {
  nb::class_<RowOptimizerKind>(m, "RowOptimizerKind")
      .def_prop_ro(
          "dump_field", [](const RowOptimizerKind& kind) { return kind.dump.field; },
          "Number of its message in the dumps of upstream; 0: it has none.")
      .def(
          "is_elementwise",
          [](const RowOptimizerKind& kind, const std::map<std::string, double>& parameters) {
            return kind.is_elementwise(Params(parameters));
          },
          "parameters"_a);
  m.def("row_optimizer_kind", &RowOptimizerKindNamed, "name"_a);
  m.def("row_optimizer_kinds", &AllKinds, "Every kind by its name, in the order of the core's table.");
}

}  // namespace monolith
