// Plans exchanged between ranks, and merged plans.
#include "table/plan_merge.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>
#include <vector>

#include "bindings.h"
#include "spans.h"
#include "table/group.h"
#include "table/plan_parts.h"
#include "vector_array.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names only

namespace monolith {
namespace {

using Range = std::pair<uint32_t, uint32_t>;

std::vector<BucketRange> RangesOf(const std::vector<Range>& pairs) {
  std::vector<BucketRange> ranges;
  for (const auto& [begin, end] : pairs) ranges.push_back({begin, end});
  return ranges;
}

void BindParts(nb::module_& m) {
  nb::class_<PlanParts>(m, "PlanParts")
      .def_prop_ro("words", [](nb::handle self) { return ViewOf<int64_t>(nb::cast<PlanParts&>(self).words, self); })
      .def_prop_ro("num_words",
                   [](nb::handle self) { return ViewOf<int64_t>(nb::cast<PlanParts&>(self).num_words, self); })
      .def_prop_ro("num_keys",
                   [](nb::handle self) { return ViewOf<int64_t>(nb::cast<PlanParts&>(self).num_keys, self); })
      .def_prop_ro("num_values",
                   [](nb::handle self) { return ViewOf<int64_t>(nb::cast<PlanParts&>(self).num_values, self); });
}

void BindRows(nb::class_<MergedPlans>& merged) {
  merged
      .def(
          "sum_rows",
          [](const MergedPlans& self, const std::vector<In<float>>& values, const Out<float>& out,
             const std::optional<std::vector<float>>& scales) {
            const auto rows = Spans(values);
            const std::vector<float> factors = scales.value_or(std::vector<float>());
            return WithoutGil([&] { return SumRows(self, rows, factors, Span(out)); });
          },
          "values"_a.noconvert(), "out"_a.noconvert(), "scales"_a.none() = nb::none())
      .def(
          "first_rows",
          [](const MergedPlans& self, const std::vector<In<float>>& values, const Out<float>& out) {
            const auto rows = Spans(values);
            WithoutGil([&] { FirstRows(self, rows, Span(out)); });
          },
          "values"_a.noconvert(), "out"_a.noconvert())
      .def(
          "times_of_inputs",
          [](const MergedPlans& self, const std::vector<In<int64_t>>& times) {
            return ArrayOf(TimesOfInputs(self, Spans(times)));
          },
          "times"_a.noconvert())
      .def(
          "times_of_ids",
          [](const MergedPlans& self, const std::vector<In<int64_t>>& times) {
            return ArrayOf(TimesOfIds(self, Spans(times)));
          },
          "times"_a.noconvert());
}

}  // namespace

void BindPlanMerge(nb::module_& m) {
  BindParts(m);
  nb::class_<MergedPlans> merged(m, "MergedPlans");
  merged.def_prop_ro(
            "plan", [](MergedPlans& self) -> Plan& { return self.plan; }, nb::rv_policy::reference_internal)
      .def_prop_ro("num_sources", [](const MergedPlans& self) { return self.sources.size(); })
      .def(
          "num_keys", [](const MergedPlans& self, int64_t source) { return self.source(source).num_keys(); },
          "source"_a)
      .def(
          "num_values", [](const MergedPlans& self, int64_t source) { return self.source(source).num_values(); },
          "source"_a)
      .def(
          "places",
          [](nb::handle self, int64_t source) {
            return ViewOf<int32_t>(nb::cast<MergedPlans&>(self).source(source).places, self);
          },
          "source"_a);
  BindRows(merged);
}

void BindGroupMerging(nb::class_<Group>& group) {
  group
      .def(
          "plan_parts",
          [](const Group& self, const Plan& plan, const std::vector<Range>& owned, bool with_counts) {
            const std::vector<BucketRange> owners = RangesOf(owned);
            return WithoutGil([&] { return self.Parts(plan, owners, with_counts); });
          },
          "plan"_a, "owned"_a, "with_counts"_a)
      .def(
          "merge_plans",
          [](const Group& self, const std::vector<const Plan*>& plans) {
            return WithoutGil([&] { return self.Merge(plans); });
          },
          "plans"_a)
      .def(
          "merge_parts",
          [](const Group& self, const In<int64_t>& words, const In<int64_t>& num_words, Range buckets) {
            return WithoutGil(
                [&] { return self.Merge(Span(words), Span(num_words), BucketRange{buckets.first, buckets.second}); });
          },
          "words"_a.noconvert(), "num_words"_a.noconvert(), "buckets"_a)
      .def(
          "read_merged",
          [](const Group& self, MergedPlans& merged, const Out<float>& values, int64_t step) {
            return WithoutGil([&] { return self.ReadMerged(merged, Span(values), step); });
          },
          "merged"_a, "values"_a.noconvert(), "step"_a);
}

}  // namespace monolith
