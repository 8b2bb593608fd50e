// Reading row blocks from groups and loading them: one by one, or many end to end in one buffer.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings.h"
#include "block_iterator.h"
#include "buffer_view.h"
#include "device/device_group.h"
#include "filter/saved_counts.h"
#include "format/row_block.h"
#include "table/group.h"
#include "table/table_spec.h"
#include "vector_array.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names only

namespace monolith {
namespace {

using BlockList = std::vector<nb::bytes>;
using Range = std::pair<uint32_t, uint32_t>;
using SourceSchemas = std::optional<std::map<int, std::string>>;

std::vector<std::string_view> BytesOf(const BlockList& blocks) {
  std::vector<std::string_view> views;
  for (const nb::bytes& block : blocks) views.emplace_back(block.c_str(), block.size());
  return views;
}

std::string_view BytesOf(const BufferView& data) {
  return {reinterpret_cast<const char*>(data.bytes().data()), data.size()};
}

std::vector<std::string> SchemasOf(const Group& group, const SourceSchemas& source_schemas) {
  std::vector<std::string> schemas(group.num_tables());
  for (const auto& [table, schema] : source_schemas.value_or(std::map<int, std::string>())) {
    group.table(table);
    schemas[table] = schema;
  }
  return schemas;
}

Loaded LoadBlocks(Group& group, const BlockList& blocks, Range buckets, const SourceSchemas& source_schemas) {
  const auto bytes = BytesOf(blocks);
  const auto schemas = SchemasOf(group, source_schemas);
  return WithoutGil([&] { return group.Load(RowBlockView::AllOf(bytes), buckets.first, buckets.second, schemas); });
}

void CheckBlocks(Group& group, const BlockList& blocks, Range buckets, const SourceSchemas& source_schemas) {
  const auto bytes = BytesOf(blocks);
  const auto schemas = SchemasOf(group, source_schemas);
  WithoutGil([&] { group.CheckBlocks(RowBlockView::AllOf(bytes), buckets.first, buckets.second, schemas); });
}

Loaded LoadAll(Group& group, std::span<const RowBlockView> blocks, Range buckets) {
  return group.Load(blocks, buckets.first, buckets.second, {});
}
Loaded LoadAll(device::DeviceGroup& group, std::span<const RowBlockView> blocks, Range buckets) {
  return group.Load(blocks, buckets.first, buckets.second);
}

template <typename AnyGroup>
Loaded LoadPacked(AnyGroup& group, nb::handle data, Range buckets) {
  const BufferView view(data);
  return WithoutGil([&] { return LoadAll(group, RowBlockView::AllIn(BytesOf(view)), buckets); });
}

Group& HostOf(Group& group) { return group; }
Group& HostOf(device::DeviceGroup& group) { return group.host(); }

template <typename AnyGroup>
void CheckPacked(AnyGroup& group, nb::handle data, Range buckets) {
  const BufferView view(data);
  WithoutGil([&] { HostOf(group).CheckBlocks(RowBlockView::AllIn(BytesOf(view)), buckets.first, buckets.second, {}); });
}

// Concatenates all parts to one object.
nb::bytes Joined(const std::vector<std::string>& parts) {
  size_t size = 0;
  for (const std::string& part : parts) size += part.size();
  const nb::bytes joined = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
  if (!joined.is_valid()) throw nb::python_error();
  char* to = PyBytes_AsString(joined.ptr());
  WithoutGil([&] {  // no other thread has a reference yet
    for (const std::string& part : parts) {
      std::memcpy(to, part.data(), part.size());
      to += part.size();
    }
  });
  return joined;
}

// Returns the payload of a filter block of a bucket without the counts of some keys of a table.
nb::bytes WithoutCountsOf(const nb::bytes& payload, const std::string& table, const std::vector<int32_t>& wide_slots,
                          uint32_t bucket, const std::vector<int64_t>& keys) {
  TableSpec spec(table);
  spec.SetWideSlots(wide_slots);
  std::vector<uint64_t> hashes;
  for (const int64_t key : keys) hashes.push_back(spec.CountedHash(HashInBucket(bucket % kNumBuckets, key), key));
  const std::string left = WithoutCounts(std::string(payload.c_str(), payload.size()), hashes);
  return nb::bytes(left.data(), left.size());
}

// The calls that groups of this process and those on devices share.
template <typename AnyGroup>
void BindBlocks(nb::class_<AnyGroup>& group) {
  group
      .def(
          "changes",
          [](AnyGroup& self, uint64_t since, Range buckets, bool state) {
            return BlockIterator(WithoutGil([&] { return self.Changes(since, buckets.first, buckets.second, state); }));
          },
          "since"_a, "buckets"_a, "state"_a, nb::keep_alive<0, 1>())
      .def(
          "packed_changes",
          [](AnyGroup& self, uint64_t since, Range buckets, bool state) {
            return Joined(WithoutGil([&] { return self.PackedChanges(since, buckets.first, buckets.second, state); }));
          },
          "since"_a, "buckets"_a, "state"_a)
      .def("check_packed", &CheckPacked<AnyGroup>, "data"_a, "buckets"_a,
           nb::sig("def check_packed(self, data: bytes | bytearray | memoryview, buckets: tuple[int, int]) -> None"))
      .def("load_packed", &LoadPacked<AnyGroup>, "data"_a, "buckets"_a,
           nb::sig("def load_packed(self, data: bytes | bytearray | memoryview, buckets: tuple[int, int]) -> Loaded"));
}

}  // namespace

void BindDeviceBlocks(nb::class_<device::DeviceGroup>& group) {
  BindBlocks(group);
  group
      .def(
          "check",
          [](device::DeviceGroup& self, const BlockList& blocks, Range buckets) {
            CheckBlocks(self.host(), blocks, buckets, {});
          },
          "blocks"_a, "buckets"_a)
      .def(
          "load",
          [](device::DeviceGroup& self, const BlockList& blocks, Range buckets) {
            const auto bytes = BytesOf(blocks);
            return WithoutGil([&] { return LoadAll(self, RowBlockView::AllOf(bytes), buckets); });
          },
          "blocks"_a, "buckets"_a);
}

void BindGroupBlocks(nb::module_& m, nb::class_<Group>& group) {
  m.def(
      "packed_block_offsets",
      [](nb::handle data) {
        const BufferView view(data);
        return ArrayOf(WithoutGil([&] { return PackedBlockOffsets(BytesOf(view)); }));
      },
      "data"_a,
      nb::sig("def packed_block_offsets(data: bytes | bytearray | memoryview) -> "
              "Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C')]"));
  m.def("without_counts", &WithoutCountsOf, "payload"_a, nb::kw_only(), "table"_a, "wide_slots"_a, "bucket"_a,
        "keys"_a);
  BindBlocks(group);
  group.def("check", &CheckBlocks, "blocks"_a, "buckets"_a, "source_schemas"_a.none() = nb::none())
      .def("load", &LoadBlocks, "blocks"_a, "buckets"_a, "source_schemas"_a.none() = nb::none());
}

}  // namespace monolith
