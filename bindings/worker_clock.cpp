// Stamps of batches, and the position of an update among those of its worker.
#include "table/worker_clock.h"

#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names only

namespace monolith {
namespace {

std::string TextOf(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }
nb::bytes BytesOf(const std::string& text) { return nb::bytes(text.data(), text.size()); }

}  // namespace

void BindWorkerClock(nb::module_& m) {
  nb::class_<BatchStamp>(m, "BatchStamp")
      .def(
          "__init__",
          [](BatchStamp* self, int64_t worker, int64_t seq, const nb::bytes& position, int64_t event_time_ms) {
            new (self) BatchStamp{worker, seq, TextOf(position), event_time_ms};
          },
          "worker"_a, "seq"_a, "position"_a, "event_time_ms"_a)
      .def_ro("worker", &BatchStamp::worker)
      .def_ro("seq", &BatchStamp::seq)
      .def_prop_ro("position", [](const BatchStamp& self) { return BytesOf(self.position); })
      .def_ro("event_time_ms", &BatchStamp::event_time_ms);
  nb::class_<Push>(m, "Push").def(
      "__init__",
      [](Push* self, int64_t worker, int64_t incarnation, int64_t first_seq, int64_t seq, int64_t previous,
         const nb::bytes& position, int64_t event_time_ms) {
        new (self) Push{incarnation, first_seq, {worker, seq, TextOf(position), event_time_ms}, previous};
      },
      nb::kw_only(), "worker"_a, "incarnation"_a, "first_seq"_a, "seq"_a, "previous"_a, "position"_a,
      "event_time_ms"_a);
}

}  // namespace monolith
