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
using device::DeviceUpdate;
using device::Launcher;

// Memory of a device, as Tensor.data_ptr() gives it; 0: none.
using Address = uintptr_t;

const float* FloatsAt(Address address) { return reinterpret_cast<const float*>(address); }

void BindLauncher(nb::module_& m) {
  nb::class_<Launcher>(m, "DeviceLauncher")
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
          [](DeviceGroup& self, const Plan& plan, Address values, int64_t step) {
            WithoutGil([&] { self.Read(plan, reinterpret_cast<float*>(values), step); });
          },
          "plan"_a, "values"_a, "step"_a)
      .def(
          "apply",
          [](DeviceGroup& self, const Plan& plan, Address gradients, Address latest, const In<float>& learning_rates,
             int64_t step, const In<int64_t>& times, float scale, const std::vector<Push>& pushes) {
            const DeviceUpdate update{
                FloatsAt(gradients), FloatsAt(latest), Span(learning_rates), step, Span(times), scale};
            return WithoutGil([&] { return self.Apply(plan, update, pushes); });
          },
          "plan"_a, "gradients"_a, "latest"_a, "learning_rates"_a.noconvert(), "step"_a, "times"_a.noconvert(),
          "scale"_a, "pushes"_a);
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
  BindLauncher(m);
  nb::class_<DeviceGroup> group(m, "DeviceGroup");
  BindBatches(group);
  BindWrites(group);
  BindHistory(group);
  BindDeviceBlocks(group);
}

}  // namespace monolith
