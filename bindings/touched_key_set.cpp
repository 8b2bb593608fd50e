// The set of touched ids.
#include "table/touched_key_set.h"

#include <cstdint>

#include "bindings.h"
#include "vector_array.h"

namespace nb = nanobind;

namespace monolith {

void BindTouchedKeySet(nb::module_& m) {
  nb::class_<TouchedKeySet>(m, "TouchedKeySet", nb::is_weak_referenceable())
      .def(nb::init<int64_t, int64_t>(), nb::arg("capacity"), nb::arg("concurrency_level"))
      .def(
          "insert",
          [](TouchedKeySet& set, const IdArray& ids) { return WithoutGil([&] { return set.Insert(SpanOf(ids)); }); },
          nb::arg("ids").noconvert())
      .def("steal", [](TouchedKeySet& set) { return ArrayOf(WithoutGil([&] { return set.Steal(); })); })
      .def("size", &TouchedKeySet::Size)
      .def_prop_ro("capacity", &TouchedKeySet::capacity)
      .def_prop_ro("concurrency_level", &TouchedKeySet::concurrency_level)
      .def("allocated_bytes", [](TouchedKeySet& set) { return WithoutGil([&] { return set.AllocatedBytes(); }); });
}

}  // namespace monolith
