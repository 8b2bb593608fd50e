// Snapshot files: writing the files of a cut and loading files into a group. Manifests are handled in Python.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "device/device_group.h"
#include "format/crc32c.h"
#include "format/file_io.h"
#include "format/snapshot_io.h"
#include "format/summed_read.h"
#include "snapshot/restore.h"
#include "table/cut.h"
#include "table/loader.h"
#include "vector_array.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names only

namespace monolith {
namespace {

using PlannedFile = std::tuple<std::string, uint32_t, uint32_t>;  // path, buckets [begin, end)
using BucketPair = std::pair<uint32_t, uint32_t>;
using ByteArray = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OpenByteArray = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<SnapshotFileInfo> WriteFiles(Cut& cut, const std::vector<PlannedFile>& files, const CutOptions& cut_options,
                                         const WriteOptions& options, TransferProgress& transfer) {
  const nb::gil_scoped_release release;
  std::vector<FilePlan> plan;
  for (const auto& [path, begin, end] : files) plan.push_back({path, begin, end});
  const auto open = [&](uint32_t begin, uint32_t end) { return cut.Blocks(begin, end, cut_options); };
  return WriteSnapshotFiles(plan, open, options, &transfer);
}

RestorePlan PlanOf(std::vector<SnapshotFileInfo> files, BucketPair buckets, std::vector<int> tables,
                   std::vector<std::string> source_schemas, int threads) {
  return {std::move(files), buckets.first, buckets.second, std::move(tables), std::move(source_schemas), threads};
}

void BindFiles(nb::module_& m) {
  m.def("crc32c", [](nb::bytes data) { return Crc32c(data.c_str(), data.size()); }, "data"_a);
  m.def(
      "crc32c_extend",
      [](uint32_t crc, const ByteArray& data) {
        return WithoutGil([&] { return Crc32cExtend(crc, data.data(), data.size()); });
      },
      "crc"_a, "data"_a);
  m.def(
      "read_summed",
      [](const std::string& path, const OpenByteArray& target, size_t piece_bytes, int threads) {
        const std::span<char> bytes(reinterpret_cast<char*>(target.data()), target.size());
        return WithoutGil([&] { return ReadSummed(path, bytes, piece_bytes, threads); });
      },
      "path"_a, "target"_a, nb::kw_only(), "piece_bytes"_a, "threads"_a);
  m.def("sync_directory", &SyncDirectory, "path"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "commit_file",
      [](const std::string& path, nb::bytes data) {
        const std::string_view bytes(data.c_str(), data.size());
        const nb::gil_scoped_release release;
        OutputFile file(path);
        file.Append(bytes);
        file.Commit();
      },
      "path"_a, "data"_a);
}

void BindTransfers(nb::module_& m) {
  nb::class_<OutputFile>(m, "OutputFile")
      .def(
          "__init__",
          [](OutputFile* self, std::string path, bool past_cache) {
            new (self) OutputFile(std::move(path), {}, past_cache ? Caching::kPastCache : Caching::kThroughCache);
          },
          "path"_a, nb::kw_only(), "past_cache"_a)
      .def(
          "append",
          [](OutputFile& self, const ByteArray& data) {
            const std::string_view bytes(reinterpret_cast<const char*>(data.data()), data.size());
            WithoutGil([&] { self.Append(bytes); });
          },
          "data"_a)
      .def("commit", &OutputFile::Commit, nb::call_guard<nb::gil_scoped_release>())
      .def("discard", &OutputFile::Discard, nb::call_guard<nb::gil_scoped_release>());
  nb::class_<TransferProgress>(m, "Transfer")
      .def(nb::init<>())
      .def_prop_ro("bytes", [](const TransferProgress& self) { return self.bytes.load(); })
      .def_prop_ro("blocks", [](const TransferProgress& self) { return self.blocks.load(); })
      .def_prop_ro("cancelled", [](const TransferProgress& self) { return self.cancelled.load(); })
      .def("cancel", [](TransferProgress& self) { self.cancelled.store(true); });
}

void BindFileInfo(nb::module_& m) {
  nb::class_<SnapshotFileInfo>(m, "SnapshotFileInfo")
      .def(
          "__init__",
          [](SnapshotFileInfo* self, std::string path, uint64_t snapshot_id, BucketPair buckets, uint64_t bytes,
             uint32_t index_crc) {
            new (self)
                SnapshotFileInfo{std::move(path), snapshot_id, buckets.first, buckets.second, bytes, index_crc, {}};
          },
          "path"_a, "snapshot_id"_a, "buckets"_a, "bytes"_a, "index_crc"_a)
      .def_ro("path", &SnapshotFileInfo::path)
      .def_ro("snapshot_id", &SnapshotFileInfo::snapshot_id)
      .def_prop_ro("buckets", [](const SnapshotFileInfo& self) { return BucketPair(self.begin, self.end); })
      .def_ro("bytes", &SnapshotFileInfo::bytes)
      .def_ro("index_crc", &SnapshotFileInfo::index_crc)
      .def_ro("rows_by_table", &SnapshotFileInfo::rows_by_table);
}

}  // namespace

void BindEntryDump(nb::module_& m);  // in entry_dump.cpp

void BindSnapshot(nb::module_& m) {
  BindFiles(m);
  BindTransfers(m);
  BindFileInfo(m);
  m.def(
      "write_snapshot_files",
      [](Cut& cut, const std::vector<PlannedFile>& files, uint64_t snapshot_id, bool state, bool drop_expired,
         uint64_t bytes_per_second, int threads, TransferProgress& transfer, std::optional<uint64_t> since) {
        return WriteFiles(cut, files, {state, drop_expired, since}, {snapshot_id, bytes_per_second, threads}, transfer);
      },
      "cut"_a, "files"_a, nb::kw_only(), "snapshot_id"_a, "state"_a, "drop_expired"_a, "bytes_per_second"_a,
      "threads"_a, "transfer"_a, "since"_a = nb::none());
  m.def(
      "is_blank", [](const Group& group) { return Loader::IsBlank(group); }, "group"_a,
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "check_snapshot",
      [](Group& group, std::vector<SnapshotFileInfo> files, BucketPair buckets, std::vector<int> tables,
         std::vector<std::string> source_schemas, int threads, TransferProgress& transfer) {
        const nb::gil_scoped_release release;
        CheckSnapshot(group, PlanOf(std::move(files), buckets, std::move(tables), std::move(source_schemas), threads),
                      &transfer);
      },
      "group"_a, "files"_a, nb::kw_only(), "buckets"_a, "tables"_a, "source_schemas"_a, "threads"_a, "transfer"_a);
  m.def(
      "load_snapshot",
      [](Group& group, std::vector<SnapshotFileInfo> files, BucketPair buckets, std::vector<int> tables,
         std::vector<std::string> source_schemas, int threads, TransferProgress& transfer) {
        const nb::gil_scoped_release release;
        return LoadSnapshot(
            group, PlanOf(std::move(files), buckets, std::move(tables), std::move(source_schemas), threads), &transfer);
      },
      "group"_a, "files"_a, nb::kw_only(), "buckets"_a, "tables"_a, "source_schemas"_a, "threads"_a, "transfer"_a);
  m.def(
      "load_snapshot",
      [](device::DeviceGroup& group, std::vector<SnapshotFileInfo> files, BucketPair buckets, std::vector<int> tables,
         std::vector<std::string> source_schemas, int threads, TransferProgress& transfer) {
        const nb::gil_scoped_release release;
        return group.LoadSnapshot(
            PlanOf(std::move(files), buckets, std::move(tables), std::move(source_schemas), threads), &transfer);
      },
      "group"_a, "files"_a, nb::kw_only(), "buckets"_a, "tables"_a, "source_schemas"_a, "threads"_a, "transfer"_a);
  m.def(
      "check_snapshot",
      [](device::DeviceGroup& group, std::vector<SnapshotFileInfo> files, BucketPair buckets, std::vector<int> tables,
         std::vector<std::string> source_schemas, int threads, TransferProgress& transfer) {
        const nb::gil_scoped_release release;
        CheckSnapshot(group.host(),
                      PlanOf(std::move(files), buckets, std::move(tables), std::move(source_schemas), threads),
                      &transfer);
      },
      "group"_a, "files"_a, nb::kw_only(), "buckets"_a, "tables"_a, "source_schemas"_a, "threads"_a, "transfer"_a);
  m.def(
      "is_blank", [](device::DeviceGroup& group) { return group.IsBlank(); }, "group"_a,
      nb::call_guard<nb::gil_scoped_release>());
  BindEntryDump(m);
}

}  // namespace monolith
