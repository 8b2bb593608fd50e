// Tables whose rows are on a device, and where their kernels run.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/process_key.h"
#include "bindings.h"
#include "device/cpu_launcher.h"
#include "device/cuda_launcher.h"
#include "device/device_group.h"
#include "group_stats.h"
#include "spans.h"
#include "vector_array.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names only

namespace monolith {
namespace {

using device::CpuLauncher;
using device::DeviceGroup;
using device::DevicePlan;
using device::DeviceUpdate;
using device::Launcher;
using device::PlanInput;

// Memory of a device, as Tensor.data_ptr() gives it; 0: none.
using Address = uintptr_t;

template <typename T>
T* At(Address address) {
  return reinterpret_cast<T*>(address);
}

nb::class_<Launcher> BindLauncher(nb::module_& m) {
  nb::class_<Launcher> launcher(m, "DeviceLauncher");
  launcher
      .def_static(
          "on_cpu",
          [](bool shuffled) -> std::shared_ptr<Launcher> {
            return std::make_shared<CpuLauncher>(shuffled ? CpuLauncher::Order::kShuffled
                                                          : CpuLauncher::Order::kAscending);
          },
          nb::kw_only(), "shuffled"_a)
      .def_static(
          "on_gpu",
          [](int gpu, std::vector<std::string> nvrtc_paths, std::string cache_folder) -> std::shared_ptr<Launcher> {
            const nb::gil_scoped_release release;
            return device::MakeCudaLauncher({gpu, std::move(nvrtc_paths), std::move(cache_folder)});
          },
          "gpu"_a, nb::kw_only(), "nvrtc_paths"_a, "cache_folder"_a);
  return launcher;
}

// The launches between which Python sorts: device/kernels/plan.h has their order. Memory is the caller's.
void FindFirstsOf(Launcher& launcher, const PlanInput& source, Address slots, uint32_t slot_bits, Address firsts,
                  Address is_first, uintptr_t stream) {
  auto* first = At<uint32_t>(firsts);
  launcher.Launch(source.num_ids, device::InsertPositions{source, kProcessKey, slot_bits, At<uint32_t>(slots), first},
                  {stream});
  launcher.Launch(source.num_ids, device::FindFirsts{source.num_ids, At<uint32_t>(slots), first, At<int32_t>(is_first)},
                  {stream});
}

void OrderDistinctOf(Launcher& launcher, const PlanInput& source, uint32_t num_unique, Address places,
                     Address positions, Address firsts, Address place_of, Address cells, Address unique,
                     Address inverse, Address counts, Address splits, uintptr_t stream) {
  const uint32_t num_cells = kNumBuckets * source.num_tables;
  launcher.Launch(num_unique,
                  device::OrderDistinct{source, num_unique, At<int64_t>(places), At<uint32_t>(positions),
                                        At<int64_t>(unique), nullptr, At<uint32_t>(place_of)},
                  {stream});
  launcher.Launch(source.num_ids,
                  device::NumberPositions{source.num_ids, At<uint32_t>(firsts), At<uint32_t>(place_of),
                                          At<int32_t>(inverse), At<int32_t>(counts)},
                  {stream});
  launcher.Launch(num_cells + 1, device::FindSplits{num_unique, num_cells, At<int32_t>(cells), At<int64_t>(splits)},
                  {stream});
}

void BindPlans(nb::module_& m, nb::class_<Launcher>& launcher) {
  nb::class_<PlanInput>(m, "PlanSource")
      .def(
          "__init__",
          [](PlanInput* self, Address keys, Address buckets, uint32_t num_ids, Address table_splits,
             uint32_t num_tables) {
            new (self)
                PlanInput{num_ids, num_tables, At<int64_t>(keys), At<uint16_t>(buckets), At<int64_t>(table_splits)};
          },
          "keys"_a, "buckets"_a, "num_ids"_a, "table_splits"_a, "num_tables"_a);
  const nb::call_guard<nb::gil_scoped_release> released;
  launcher
      .def("find_firsts", &FindFirstsOf, released, "source"_a, "slots"_a, "slot_bits"_a, "firsts"_a, "is_first"_a,
           nb::kw_only(), "stream"_a)
      .def(
          "compact_firsts",
          [](Launcher& self, const PlanInput& source, Address firsts, Address ranks, Address positions, Address cells,
             uintptr_t stream) {
            self.Launch(source.num_ids,
                        device::CompactFirsts{source, At<uint32_t>(firsts), At<int32_t>(ranks), At<uint32_t>(positions),
                                              At<int32_t>(cells)},
                        {stream});
          },
          released, "source"_a, "firsts"_a, "ranks"_a, "positions"_a, "cells"_a, nb::kw_only(), "stream"_a)
      .def("order_distinct", &OrderDistinctOf, released, "source"_a, "num_unique"_a, nb::kw_only(), "places"_a,
           "positions"_a, "firsts"_a, "place_of"_a, "cells"_a, "unique"_a, "inverse"_a, "counts"_a, "splits"_a,
           "stream"_a);
  nb::class_<DevicePlan>(m, "DevicePlan")
      .def(
          "__init__",
          [](DevicePlan* self, const In<int64_t>& table_splits, std::vector<uint32_t> num_ids_of_tables, Address keys,
             Address cells, Address splits, Address inverse, Address counts, Address offsets, Address rows) {
            new (self) DevicePlan{{table_splits.data(), table_splits.data() + table_splits.size()},
                                  std::move(num_ids_of_tables),
                                  At<int64_t>(keys),
                                  At<int32_t>(cells),
                                  At<int64_t>(splits),
                                  At<int32_t>(inverse),
                                  At<int32_t>(counts),
                                  At<int64_t>(offsets),
                                  At<uint32_t>(rows)};
          },
          nb::kw_only(), "table_splits"_a, "num_ids_of_tables"_a, "keys"_a, "cells"_a, "splits"_a, "inverse"_a,
          "counts"_a, "offsets"_a, "rows"_a);
}

void BindBatches(nb::class_<DeviceGroup>& group) {
  group
      .def(
          "__init__",
          [](DeviceGroup* self, Group& host, std::shared_ptr<Launcher> launcher, uintptr_t stream, int chunk_bits,
             uint32_t segment_bits) {
            device::DeviceGroupConfig config{{stream}, {}};
            config.sizes.chunk_bits = chunk_bits;
            config.sizes.segment_bits = segment_bits;
            const nb::gil_scoped_release release;
            new (self) DeviceGroup(host, std::move(launcher), config);
          },
          "host"_a, "launcher"_a, nb::kw_only(), "stream"_a, "chunk_bits"_a, "segment_bits"_a, nb::keep_alive<1, 2>())
      .def(
          "read",
          [](DeviceGroup& self, DevicePlan& plan, Address values, int64_t step) {
            WithoutGil([&] { self.Read(plan, At<float>(values), step); });
          },
          "plan"_a, "values"_a, "step"_a)
      .def(
          "apply",
          [](DeviceGroup& self, const DevicePlan& plan, Address gradients, Address latest,
             const In<float>& learning_rates, int64_t step, const In<int64_t>& times, float scale, bool known_finite,
             const std::vector<Push>& pushes) {
            const DeviceUpdate update{
                At<float>(gradients), At<float>(latest), Span(learning_rates), step, Span(times), scale, known_finite};
            return WithoutGil([&] { return self.Apply(plan, update, pushes); });
          },
          "plan"_a, "gradients"_a, "latest"_a, "learning_rates"_a.noconvert(), "step"_a, "times"_a.noconvert(),
          "scale"_a, "known_finite"_a, "pushes"_a);
}

void BindWrites(nb::class_<DeviceGroup>& group) {
  group
      .def(
          "assign",
          [](DeviceGroup& self, int table, const In<int64_t>& ids, const In<float>& values, const In<int64_t>& times,
             bool add, int64_t step, const std::optional<In<uint16_t>>& buckets) {
            return WithoutGil(
                [&] { return self.Assign(table, Span(ids), Span(values), Span(times), add, step, Span(buckets)); });
          },
          "table"_a, "ids"_a.noconvert(), "values"_a.noconvert(), "times"_a.noconvert(), "add"_a, "step"_a,
          "buckets"_a.noconvert().none() = nb::none())
      .def(
          "erase",
          [](DeviceGroup& self, int table, const In<int64_t>& ids, const std::optional<In<uint16_t>>& buckets) {
            return WithoutGil([&] { return self.Erase(table, Span(ids), Span(buckets)); });
          },
          "table"_a, "ids"_a.noconvert(), "buckets"_a.noconvert().none() = nb::none())
      .def(
          "touch",
          [](DeviceGroup& self, int table, const In<int64_t>& ids, const std::optional<In<uint16_t>>& buckets) {
            return WithoutGil([&] { return self.Touch(table, Span(ids), Span(buckets)); });
          },
          "table"_a, "ids"_a.noconvert(), "buckets"_a.noconvert().none() = nb::none())
      .def("evict", &DeviceGroup::Evict, nb::call_guard<nb::gil_scoped_release>(), "table"_a, "now"_a)
      .def("clear", &DeviceGroup::Clear, nb::call_guard<nb::gil_scoped_release>())
      .def("clear_buckets", &DeviceGroup::ClearBuckets, nb::call_guard<nb::gil_scoped_release>(), "begin"_a, "end"_a)
      .def(
          "raise_newest_time",
          [](DeviceGroup& self, int table, int64_t time) { self.host().RaiseNewestTime(table, time); }, "table"_a,
          "time"_a)
      .def(
          "resume",
          [](DeviceGroup& self, const std::vector<BatchStamp>& stamps) { WithoutGil([&] { self.Resume(stamps); }); },
          "stamps"_a);
}

void BindHistory(nb::class_<DeviceGroup>& group) {
  const nb::call_guard<nb::gil_scoped_release> released;
  group.def("mark", &DeviceGroup::Mark, released)
      .def(
          "last_mark", [](DeviceGroup& self) { return self.host().LastMark(); }, released)
      .def(
          "open_cut_epoch", [](DeviceGroup& self) { return self.host().OpenCutEpoch(); }, released)
      .def(
          "history_floor", [](DeviceGroup& self) { return self.host().HistoryFloor(); }, released)
      .def(
          "follow_history", [](DeviceGroup& self, bool followed) { self.host().FollowHistory(followed); }, released,
          "followed"_a)
      .def(
          "truncate_history", [](DeviceGroup& self, uint64_t before) { self.host().TruncateHistory(before); }, released,
          "before"_a)
      .def("cut", &DeviceGroup::OpenCut, released, nb::keep_alive<0, 1>())
      .def("rows_by_slot", &DeviceGroup::RowsBySlot, released, "table"_a)
      .def(
          "stats", [](DeviceGroup& self, int table) { return DictOf(WithoutGil([&] { return self.Stats(table); })); },
          "table"_a);
}

}  // namespace

void BindDevice(nb::module_& m) {
  nb::class_<Launcher> launcher = BindLauncher(m);
  BindPlans(m, launcher);
  nb::class_<DeviceGroup> group(m, "DeviceGroup");
  BindBatches(group);
  BindWrites(group);
  BindHistory(group);
  BindDeviceBlocks(group);
}

}  // namespace monolith
