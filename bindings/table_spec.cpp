// The parts of a table, as the Python configs describe them.
#include "table/table_spec.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include "base/error.h"
#include "bindings.h"
#include "kernel.h"
#include "vector_array.h"

namespace nb = nanobind;

namespace monolith {
namespace {

using SlotArray = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const int32_t> SlotSpan(const SlotArray& array) { return {array.data(), array.size()}; }

NonFinite NonFiniteNamed(const std::string& name) {
  if (name == "raise") return NonFinite::kRaise;
  if (name == "skip") return NonFinite::kSkip;
  if (name == "apply") return NonFinite::kApply;
  throw Error(Code::kInvalidArgument, "nonfinite must be 'raise', 'skip' or 'apply', got '" + name + "'");
}

CapEviction CapEvictionNamed(const std::string& name) {
  if (name == "lru") return CapEviction::kLeastRecentlyUsed;
  if (name == "lfu") return CapEviction::kLeastFrequentlyUsed;
  throw Error(Code::kInvalidArgument, "eviction must be 'lru' or 'lfu', got '" + name + "'");
}

void InitSpec(TableSpec* spec, const std::string& name, bool serving, bool skip_zero, uint64_t seed,
              const std::string& nonfinite, uint64_t max_rows, const std::string& eviction) {
  new (spec) TableSpec(name);
  spec->serving = serving;
  spec->skip_zero = skip_zero;
  spec->seed = seed;
  spec->nonfinite = NonFiniteNamed(nonfinite);
  spec->max_rows = max_rows;
  spec->cap_eviction = CapEvictionNamed(eviction);
}

}  // namespace

void BindTableSpec(nb::module_& m) {
  nb::class_<TableSpec>(m, "TableSpec")
      .def("__init__", &InitSpec, nb::arg("name"), nb::kw_only(), nb::arg("serving"), nb::arg("skip_zero"),
           nb::arg("seed"), nb::arg("nonfinite"), nb::arg("max_rows"), nb::arg("eviction"))
      .def(
          "add_segment",
          [](TableSpec& spec, int dim, const KernelPair& initializer, const KernelPair& optimizer,
             const KernelPair& compressor) {
            spec.AddSegment(dim, KernelOf(initializer), KernelOf(optimizer), KernelOf(compressor));
          },
          nb::arg("dim"), nb::arg("initializer"), nb::arg("optimizer"), nb::arg("compressor"))
      .def(
          "set_wide_slots", [](TableSpec& spec, const SlotArray& numbers) { spec.SetWideSlots(SlotSpan(numbers)); },
          nb::arg("numbers").noconvert())
      .def(
          "set_expiry",
          [](TableSpec& spec, uint32_t default_days, const SlotArray& slots, const SlotArray& days,
             int64_t evict_every_seconds) {
            spec.expire_days.Set(default_days, SlotSpan(slots), SlotSpan(days));
            spec.evict_every_seconds = evict_every_seconds;
          },
          nb::arg("default_days"), nb::arg("slots").noconvert(), nb::arg("days").noconvert(),
          nb::arg("evict_every_seconds"))
      .def(
          "set_admission",
          [](TableSpec& spec, uint32_t default_threshold, const SlotArray& slots, const SlotArray& thresholds) {
            spec.min_counts.Set(default_threshold, SlotSpan(slots), SlotSpan(thresholds));
          },
          nb::arg("default_threshold"), nb::arg("slots").noconvert(), nb::arg("thresholds").noconvert());
}

}  // namespace monolith
