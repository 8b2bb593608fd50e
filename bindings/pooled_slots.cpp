// Pooling over many slots in one call.
#include "table/pooled_slots.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <variant>
#include <vector>

#include "bindings.h"
#include "vector_array.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names only

namespace monolith {
namespace {

template <typename T>
using Flat = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;

template <typename T>
std::span<T> SpanOf(const Flat<T>& array) {
  return {array.data(), array.size()};
}

std::vector<PooledSlot> SlotsOf(const std::vector<int>& tables, const std::vector<int64_t>& columns,
                                const std::vector<int64_t>& places, const std::vector<int>& poolings,
                                const std::vector<int>& owners) {
  const size_t count = tables.size();
  if (columns.size() != count || places.size() != count || poolings.size() != count || owners.size() != count) {
    throw nb::value_error("tables, columns, places, poolings and owners must have one entry per slot");
  }
  std::vector<PooledSlot> slots;
  for (size_t i = 0; i < count; ++i)
    slots.push_back({tables[i], columns[i], places[i], static_cast<Pooling>(poolings[i]), owners[i]});
  return slots;
}

// [examples, floats] with the floats of an example contiguous; examples may have a stride.
void CheckRows(const Rows& gradient, int64_t num_examples) {
  const bool side_by_side = gradient.size() == 0 || gradient.shape(1) == 1 || gradient.stride(1) == 1;
  if (static_cast<int64_t>(gradient.shape(0)) != num_examples || !side_by_side) {
    throw nb::value_error("gradients must have a row per example, with its floats side by side");
  }
}

// Of the outputs of all slots together, or of each separately.
using Gradients = std::variant<Rows, std::vector<std::optional<Rows>>>;

std::vector<SlotGradient> GradientsOf(const Gradients& gradients, const PooledLayout& layout, int64_t num_examples) {
  if (const Rows* whole = std::get_if<Rows>(&gradients)) {
    CheckRows(*whole, num_examples);
    return layout.GradientsOf({whole->data(), static_cast<int64_t>(whole->shape(1)), whole->stride(0)});
  }
  std::vector<SlotGradient> rows;
  for (const auto& gradient : std::get<std::vector<std::optional<Rows>>>(gradients)) {
    if (gradient.has_value()) CheckRows(*gradient, num_examples);
    rows.push_back(gradient.has_value()
                       ? SlotGradient{gradient->data(), static_cast<int64_t>(gradient->shape(1)), gradient->stride(0)}
                       : SlotGradient{});
  }
  return rows;
}

}  // namespace

void BindPooledSlots(nb::module_& m) {
  nb::class_<PooledLayout>(m, "PooledLayout")
      .def(
          "__init__",
          [](PooledLayout* self, const std::vector<int>& tables, const std::vector<int64_t>& columns,
             const std::vector<int64_t>& places, const std::vector<int>& poolings, const std::vector<int>& owners,
             const std::vector<int>& dims, int64_t width) {
            new (self) PooledLayout(SlotsOf(tables, columns, places, poolings, owners), dims, width);
          },
          nb::kw_only(), "tables"_a, "columns"_a, "places"_a, "poolings"_a, "owners"_a, "dims"_a, "width"_a)
      .def(
          "pool",
          [](const PooledLayout& self, int64_t num_examples, const Flat<const int64_t>& ids_per_example,
             const Flat<const int64_t>& row_splits, const Flat<const int64_t>& splits,
             const Flat<const int32_t>& inverse, const Flat<const float>& values, const Flat<float>& outputs) {
            const PooledShape shape{num_examples, SpanOf(ids_per_example), SpanOf(row_splits)};
            WithoutGil([&] { self.Pool(shape, SpanOf(splits), SpanOf(inverse), SpanOf(values), SpanOf(outputs)); });
          },
          "num_examples"_a, "ids_per_example"_a.noconvert(), "row_splits"_a.noconvert(), "splits"_a.noconvert(),
          "inverse"_a.noconvert(), "values"_a.noconvert(), "outputs"_a.noconvert())
      .def(
          "sum_gradients",
          [](const PooledLayout& self, int64_t num_examples, const Flat<const int64_t>& ids_per_example,
             const Flat<const int64_t>& row_splits, const Flat<const int64_t>& splits,
             const Flat<const int32_t>& inverse, const Gradients& gradients, const Flat<float>& sums,
             const Plan* plan) {
            const PooledShape shape{num_examples, SpanOf(ids_per_example), SpanOf(row_splits)};
            const std::vector<SlotGradient> rows = GradientsOf(gradients, self, num_examples);
            Occurrences occurrences;
            if (plan != nullptr) occurrences = OccurrencesOf(*plan);
            occurrences.splits = SpanOf(splits);
            occurrences.inverse = SpanOf(inverse);
            return WithoutGil([&] { return self.SumGradients(shape, occurrences, rows, SpanOf(sums)); });
          },
          "num_examples"_a, "ids_per_example"_a.noconvert(), "row_splits"_a.noconvert(), "splits"_a.noconvert(),
          "inverse"_a.noconvert(), "gradients"_a, "sums"_a.noconvert(), "plan"_a.none() = nb::none());
}

}  // namespace monolith
