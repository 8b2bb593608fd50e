// Pooled lookups whose rows and outputs are on a device.
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>
#include <vector>

#include "bindings.h"
#include "device/slot_pooling.h"
#include "spans.h"
#include "vector_array.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names only

namespace monolith {
namespace {

using device::Launcher;
using device::PooledPlan;
using device::SlotPooling;

// Memory of a device, as Tensor.data_ptr() gives it; 0: none.
using Address = uintptr_t;

template <typename T>
const T* At(Address address) {
  return reinterpret_cast<const T*>(address);
}

std::vector<SlotGradient> GradientsOf(const std::vector<Address>& rows, const std::vector<int64_t>& strides,
                                      const PooledLayout& layout) {
  if (rows.size() != strides.size()) throw nb::value_error("rows and strides must have one entry per slot");
  std::vector<SlotGradient> gradients;
  for (size_t s = 0; s < rows.size(); ++s) gradients.push_back({At<float>(rows[s]), layout.width(), strides[s]});
  return gradients;
}

}  // namespace

void BindDevicePooling(nb::module_& m) {
  nb::class_<SlotPooling>(m, "DeviceSlotPooling")
      .def(
          "__init__",
          [](SlotPooling* self, const PooledLayout& layout, std::shared_ptr<Launcher> launcher, int64_t num_examples,
             const In<int64_t>& ids_per_example, const In<int64_t>& sizes, Address row_splits, int64_t num_ids,
             int64_t num_unique, Address inverse, Address counts, Address cells, Address offsets, Address dims) {
            const auto num_tables = static_cast<uint32_t>(layout.dims().size());
            const bool has_many = num_tables > 1;
            const PooledPlan plan{static_cast<uint32_t>(num_ids),
                                  {static_cast<uint32_t>(num_unique), num_tables, nullptr, At<int32_t>(cells)},
                                  {static_cast<uint32_t>(layout.dims()[0]), has_many ? At<uint32_t>(dims) : nullptr,
                                   has_many ? At<int64_t>(offsets) : nullptr},
                                  At<int32_t>(inverse),
                                  At<int32_t>(counts)};
            new (self) SlotPooling(layout, std::move(launcher),
                                   {num_examples, Span(ids_per_example), Span(sizes), At<int64_t>(row_splits)}, plan);
          },
          nb::keep_alive<1, 2>(), "layout"_a, "launcher"_a, nb::kw_only(), "num_examples"_a,
          "ids_per_example"_a.noconvert(), "sizes"_a.noconvert(), "row_splits"_a, "num_ids"_a, "num_unique"_a,
          "inverse"_a, "counts"_a, "cells"_a, "offsets"_a, "dims"_a)
      .def_prop_ro("scratch_bytes", &SlotPooling::scratch_bytes)
      .def(
          "pool",
          [](const SlotPooling& self, uintptr_t stream, Address values, Address outputs) {
            WithoutGil([&] { self.Pool({stream}, At<float>(values), reinterpret_cast<float*>(outputs)); });
          },
          nb::kw_only(), "stream"_a, "values"_a, "outputs"_a)
      .def(
          "sum_gradient",
          [](const SlotPooling& self, uintptr_t stream, Address starts, Address order, Address outputs, int64_t stride,
             Address scratch, Address sums) {
            const std::vector<SlotGradient> gradients =
                self.layout().GradientsOf({At<float>(outputs), self.layout().width(), stride});
            WithoutGil([&] {
              self.SumGradients({stream}, {At<int32_t>(starts), At<int64_t>(order)}, gradients,
                                reinterpret_cast<std::byte*>(scratch), reinterpret_cast<float*>(sums));
            });
          },
          nb::kw_only(), "stream"_a, "starts"_a, "order"_a, "outputs"_a, "stride"_a, "scratch"_a, "sums"_a)
      .def(
          "sum_gradients",
          [](const SlotPooling& self, uintptr_t stream, Address starts, Address order, const std::vector<Address>& rows,
             const std::vector<int64_t>& strides, Address scratch, Address sums) {
            const std::vector<SlotGradient> gradients = GradientsOf(rows, strides, self.layout());
            WithoutGil([&] {
              self.SumGradients({stream}, {At<int32_t>(starts), At<int64_t>(order)}, gradients,
                                reinterpret_cast<std::byte*>(scratch), reinterpret_cast<float*>(sums));
            });
          },
          nb::kw_only(), "stream"_a, "starts"_a, "order"_a, "rows"_a, "strides"_a, "scratch"_a, "sums"_a);
}

}  // namespace monolith
