// Groups of tables and the plans of their batches.
#include "table/group.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "base/error.h"
#include "bindings.h"
#include "group_stats.h"
#include "kernel.h"
#include "spans.h"
#include "table/cut.h"
#include "vector_array.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names only

namespace monolith {
namespace {

// Given buckets must match the ids: an empty array would mean that none are given.
void RequireBuckets(const In<int64_t>& ids, const std::optional<In<uint16_t>>& buckets) {
  if (buckets.has_value() && buckets->size() != ids.size()) {
    throw Error(Code::kInvalidArgument, "expected the buckets of " + std::to_string(ids.size()) + " ids, got " +
                                            std::to_string(buckets->size()));
  }
}

std::vector<int32_t> CountsOf(const Plan& plan) {
  std::vector<int32_t> counts(plan.num_unique());
  for (int64_t u = 0; u < plan.num_unique(); ++u) counts[u] = plan.CountOf(u);
  return counts;
}

void InitGroup(Group* group, nb::list tables, const std::optional<KernelPair>& admission) {
  std::vector<TableSpec> specs;
  for (nb::handle table : tables) specs.push_back(std::move(nb::cast<TableSpec&>(table)));
  std::unique_ptr<AdmissionFilter> filter;
  if (admission.has_value()) filter = MakeAdmissionFilter(admission->first, Params(admission->second));
  new (group) Group(std::move(specs), std::move(filter));
}

std::vector<int> SegmentNumbers(const Group& group, int table, int Segment::* member) {
  std::vector<int> numbers;
  for (const Segment& segment : group.table(table).spec.segments()) numbers.push_back(segment.*member);
  return numbers;
}

void BindPlan(nb::module_& m) {
  nb::class_<Plan>(m, "Plan")
      .def_prop_ro("num_ids", &Plan::num_ids)
      .def_prop_ro("num_unique", &Plan::num_unique)
      .def_ro("deduplicated", &Plan::deduplicated)
      .def_prop_ro("unique_ids", [](nb::handle self) { return ViewOf<int64_t>(nb::cast<Plan&>(self).unique, self); })
      .def_prop_ro("has_buckets", [](const Plan& plan) { return plan.buckets.size() != 0; })
      .def_prop_ro("splits", [](nb::handle self) { return ViewOf<int64_t>(nb::cast<Plan&>(self).splits, self); })
      .def_prop_ro("inverse", [](nb::handle self) { return ViewOf<int32_t>(nb::cast<Plan&>(self).inverse, self); })
      .def(
          "spread",
          [](const Plan& plan, int dim, const In<float>& values, const Out<float>& out) {
            WithoutGil([&] { SpreadRows(plan, dim, Span(values), Span(out)); });
          },
          "dim"_a, "values"_a.noconvert(), "out"_a.noconvert())
      .def(
          "is_of",
          [](const Plan& plan, const In<int64_t>& ids) {
            return WithoutGil([&] { return IsPlanOf(plan, Span(ids)); });
          },
          "ids"_a.noconvert())
      .def_prop_ro(
          "counts", [](const Plan& plan) { return ArrayOf(CountsOf(plan)); }, nb::rv_policy::move)
      .def(
          "newest_times",
          [](const Plan& plan, const In<int64_t>& times) {
            const auto newest = NewestTimes(plan, Span(times));
            return ArrayOf(std::vector<int64_t>(newest.begin(), newest.end()));
          },
          "times"_a.noconvert());
  nb::class_<Applied>(m, "Applied")
      .def_ro("updated", &Applied::updated)
      .def_ro("inserted", &Applied::inserted)
      .def_ro("filtered", &Applied::filtered)
      .def_ro("skipped", &Applied::skipped)
      .def_ro("duplicate", &Applied::duplicate);
  nb::class_<Loaded>(m, "Loaded")
      .def_ro("rows", &Loaded::rows)
      .def_ro("tombstones", &Loaded::tombstones)
      .def_ro("filters", &Loaded::filters)
      .def_ro("ignored", &Loaded::ignored);
}

void BindSchema(nb::class_<Group>& group) {
  group.def("__init__", &InitGroup, "tables"_a, "admission"_a.none())
      .def_prop_ro("num_tables", &Group::num_tables)
      .def(
          "table_name", [](const Group& self, int table) { return self.table(table).spec.name; }, "table"_a)
      .def(
          "dim", [](const Group& self, int table) { return self.table(table).spec.dim(); }, "table"_a)
      .def(
          "num_segments", [](const Group& self, int table) { return self.table(table).spec.segments().size(); },
          "table"_a)
      .def(
          "segment_dims", [](const Group& self, int table) { return SegmentNumbers(self, table, &Segment::dim); },
          "table"_a)
      .def(
          "segment_state_bytes",
          [](const Group& self, int table) { return SegmentNumbers(self, table, &Segment::state_bytes); }, "table"_a)
      .def(
          "state_bytes", [](const Group& self, int table) { return self.table(table).spec.state_bytes(); }, "table"_a)
      .def(
          "row_bytes", [](const Group& self, int table) { return self.table(table).spec.row_bytes(); }, "table"_a)
      .def(
          "schema", [](const Group& self, int table) { return self.table(table).spec.SchemaText(); }, "table"_a)
      .def(
          "digest", [](const Group& self, int table) { return self.table(table).digest; }, "table"_a)
      .def(
          "uses_latest", [](const Group& self, int table) { return self.table(table).spec.uses_latest(); }, "table"_a)
      .def("num_values", &Group::NumValues, "plan"_a);
}

void BindReads(nb::class_<Group>& group) {
  group
      .def(
          "plan",
          [](const Group& self, const In<int64_t>& ids, const In<int64_t>& table_splits, bool dedup,
             const std::optional<In<uint16_t>>& buckets) {
            RequireBuckets(ids, buckets);
            return WithoutGil([&] { return self.NewPlan(Span(ids), Span(table_splits), dedup, Span(buckets)); });
          },
          "ids"_a.noconvert(), "table_splits"_a.noconvert(), "dedup"_a, "buckets"_a.noconvert().none() = nb::none())
      .def(
          "plan_table",
          [](const Group& self, int table, const In<int64_t>& ids, bool dedup) {
            return WithoutGil([&] { return self.NewPlanOf(table, Span(ids), dedup); });
          },
          "table"_a, "ids"_a.noconvert(), "dedup"_a)
      .def(
          "read",
          [](const Group& self, Plan& plan, const Out<float>& values, int64_t step) {
            return WithoutGil([&] { return self.Read(plan, Span(values), step); });
          },
          "plan"_a, "values"_a.noconvert(), "step"_a)
      .def(
          "lookup",
          [](const Group& self, const In<int64_t>& ids, const In<int64_t>& table_splits, const Out<float>& values,
             int64_t step) {
            return WithoutGil([&] { return self.Lookup(Span(ids), Span(table_splits), Span(values), step); });
          },
          "ids"_a.noconvert(), "table_splits"_a.noconvert(), "values"_a.noconvert(), "step"_a)
      .def(
          "lookup_pooled",
          [](const Group& self, int table, const In<int64_t>& ids, const In<int64_t>& row_splits, int mode,
             int64_t first_n, const Out<float>& values, int64_t step) {
            const auto pooling = static_cast<Pooling>(mode);
            return WithoutGil([&] {
              return self.LookupPooled(table, Span(ids), Span(row_splits), pooling, first_n, Span(values), step);
            });
          },
          "table"_a, "ids"_a.noconvert(), "row_splits"_a.noconvert(), "mode"_a, "first_n"_a, "values"_a.noconvert(),
          "step"_a)
      .def(
          "lookup_rows",
          [](const Group& self, int table, const In<int64_t>& ids, const Out<float>& weights, const Out<uint8_t>& state,
             const Out<int64_t>& times, const Out<uint8_t>& found) {
            return WithoutGil([&] {
              return self.LookupRows(table, Span(ids), Span(weights), Span(state), Span(times), Span(found));
            });
          },
          "table"_a, "ids"_a.noconvert(), "weights"_a.noconvert(), "state"_a.noconvert(), "times"_a.noconvert(),
          "found"_a.noconvert())
      .def(
          "contains",
          [](const Group& self, int table, const In<int64_t>& ids, const Out<uint8_t>& found) {
            return WithoutGil([&] { return self.Contains(table, Span(ids), Span(found)); });
          },
          "table"_a, "ids"_a.noconvert(), "found"_a.noconvert());
}

void BindWrites(nb::class_<Group>& group) {
  group
      .def(
          "apply",
          [](Group& self, const Plan& plan, const In<float>& gradients, int layout,
             const std::optional<In<int32_t>>& rows, const std::optional<In<float>>& scales,
             const In<float>& learning_rates, int64_t step, const In<int64_t>& times, float scale,
             const std::optional<In<float>>& latest, bool known_finite, const std::vector<Push>& pushes, bool has_step,
             int64_t newest_time) {
            const Update update{.gradients = Span(gradients),
                                .per_unique = layout == 1,
                                .gradient_rows = Span(rows),
                                .gradient_scales = Span(scales),
                                .learning_rates = Span(learning_rates),
                                .step = step,
                                .has_step = has_step,
                                .times = Span(times),
                                .newest_time = newest_time,
                                .scale = scale,
                                .known_finite = known_finite,
                                .latest = Span(latest)};
            return WithoutGil([&] { return self.Apply(plan, update, pushes); });
          },
          "plan"_a, "gradients"_a.noconvert(), "layout"_a, "rows"_a.noconvert().none(), "scales"_a.noconvert().none(),
          "learning_rates"_a.noconvert(), "step"_a, "times"_a.noconvert(), "scale"_a, "latest"_a.noconvert().none(),
          "known_finite"_a = false, "pushes"_a = std::vector<Push>(), "has_step"_a = true, "newest_time"_a = 0)
      .def(
          "assign",
          [](Group& self, int table, const In<int64_t>& ids, const In<float>& values, const In<int64_t>& times,
             bool add, int64_t step, const std::optional<In<uint16_t>>& buckets) {
            RequireBuckets(ids, buckets);
            return WithoutGil(
                [&] { return self.Assign(table, Span(ids), Span(values), Span(times), add, step, Span(buckets)); });
          },
          "table"_a, "ids"_a.noconvert(), "values"_a.noconvert(), "times"_a.noconvert(), "add"_a, "step"_a,
          "buckets"_a.noconvert().none() = nb::none())
      .def(
          "reinitialize",
          [](Group& self, int table, const In<int64_t>& ids, int64_t time, const Out<int8_t>& status) {
            WithoutGil([&] { return self.Reinitialize(table, Span(ids), time, Span(status)); });
          },
          "table"_a, "ids"_a.noconvert(), "time"_a, "status"_a.noconvert())
      .def(
          "erase",
          [](Group& self, int table, const In<int64_t>& ids, const std::optional<In<uint16_t>>& buckets) {
            RequireBuckets(ids, buckets);
            return WithoutGil([&] { return self.Erase(table, Span(ids), Span(buckets)); });
          },
          "table"_a, "ids"_a.noconvert(), "buckets"_a.noconvert().none() = nb::none())
      .def("evict", &Group::Evict, nb::call_guard<nb::gil_scoped_release>(), "table"_a, "now"_a)
      .def("clear", &Group::Clear, nb::call_guard<nb::gil_scoped_release>())
      .def("clear_buckets", &Group::ClearBuckets, nb::call_guard<nb::gil_scoped_release>(), "begin"_a, "end"_a)
      .def("raise_newest_time", &Group::RaiseNewestTime, "table"_a, "time"_a);
}

void BindWorkers(nb::class_<Group>& group) {
  group
      .def(
          "join",
          [](Group& self, int64_t worker) {
            WorkerClocks::Joined joined = WithoutGil([&] { return self.Join(worker); });
            return std::pair(joined.incarnation, std::move(joined.last));
          },
          "worker"_a)
      .def(
          "resume",
          [](Group& self, const std::vector<BatchStamp>& stamps) { WithoutGil([&] { self.Resume(stamps); }); },
          "stamps"_a)
      .def("stamps", [](const Group& self) { return WithoutGil([&] { return self.Stamps(); }); })
      .def(
          "is_duplicate",
          [](Group& self, const std::vector<Push>& pushes) {
            return WithoutGil([&] { return self.IsDuplicate(pushes); });
          },
          "pushes"_a)
      .def("last_applied", &Group::LastApplied, "worker"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("steps", &Group::Steps, nb::call_guard<nb::gil_scoped_release>())
      .def("require_current", &Group::RequireCurrent, "worker"_a, "incarnation"_a,
           nb::call_guard<nb::gil_scoped_release>());
}

void BindWhole(nb::class_<Group>& group) {
  group.def(
           "size", [](const Group& self, int table) { return self.table(table).Size(); }, "table"_a)
      .def("newest_time", &Group::NewestTime, "table"_a)
      .def(
          "ids", [](const Group& self, int table) { return ArrayOf(WithoutGil([&] { return self.Ids(table); })); },
          "table"_a)
      .def("rows_by_slot", &Group::RowsBySlot, "table"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "stats", [](const Group& self, int table) { return DictOf(WithoutGil([&] { return self.Stats(table); })); },
          "table"_a);
}

void BindHistory(nb::class_<Group>& group) {
  group.def("mark", &Group::Mark, nb::call_guard<nb::gil_scoped_release>())
      .def("last_mark", &Group::LastMark, nb::call_guard<nb::gil_scoped_release>())
      .def("open_cut_epoch", &Group::OpenCutEpoch, nb::call_guard<nb::gil_scoped_release>())
      .def("history_floor", &Group::HistoryFloor, nb::call_guard<nb::gil_scoped_release>())
      .def("follow_history", &Group::FollowHistory, nb::call_guard<nb::gil_scoped_release>(), "followed"_a)
      .def(
          "touch",
          [](Group& self, int table, const In<int64_t>& ids, const std::optional<In<uint16_t>>& buckets) {
            RequireBuckets(ids, buckets);
            return WithoutGil([&] { return self.Touch(table, Span(ids), Span(buckets)); });
          },
          "table"_a, "ids"_a.noconvert(), "buckets"_a.noconvert().none() = nb::none())
      .def("truncate_history", &Group::TruncateHistory, nb::call_guard<nb::gil_scoped_release>(), "before"_a)
      .def(
          "tombstones",
          [](const Group& self, int table, uint64_t since) {
            return ArrayOf(WithoutGil([&] { return self.Tombstones(table, since); }));
          },
          "table"_a, "since"_a)
      .def("cut", &Group::OpenCut, nb::call_guard<nb::gil_scoped_release>(), nb::keep_alive<0, 1>());
}

}  // namespace

void BindGroup(nb::module_& m) {
  BindPlan(m);
  BindPlanMerge(m);
  nb::class_<Group> group(m, "Group");
  BindSchema(group);
  BindGroupMerging(group);
  BindReads(group);
  BindWrites(group);
  BindWorkers(group);
  BindWhole(group);
  BindHistory(group);
  BindGroupBlocks(m, group);
}

}  // namespace monolith
