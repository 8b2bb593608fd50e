// The cut, and iterators over row blocks.
#include "table/cut.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bindings.h"
#include "block_iterator.h"
#include "vector_array.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names only

namespace monolith {

void BindCut(nb::module_& m) {
  nb::class_<BlockIterator>(m, "BlockIterator")
      .def(
          "__iter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __iter__(self) -> BlockIterator"))
      .def("__next__", &BlockIterator::Next, nb::sig("def __next__(self) -> bytes"));
  nb::class_<Cut>(m, "Cut")
      .def_prop_ro("epoch", &Cut::epoch)
      .def("count", &Cut::counts)
      .def("newest_times", &Cut::newest_times)
      .def_prop_ro("stamps", &Cut::stamps)
      .def(
          "blocks",
          [](Cut& self, uint32_t begin, uint32_t end, bool state, bool drop_expired, std::optional<uint64_t> since) {
            const CutOptions options{state, drop_expired, since};
            return BlockIterator(WithoutGil([&] { return self.Blocks(begin, end, options); }));
          },
          "begin"_a, "end"_a, "state"_a, "drop_expired"_a = false, "since"_a = nb::none(), nb::keep_alive<0, 1>())
      .def("release", &Cut::Release, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace monolith
