// EntryDump files of ByteDance Monolith, and plain record files.
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "format/entry_dump_file.h"
#include "snapshot/entry_dump_group.h"
#include "table/cut.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names only

namespace monolith {

void BindEntryDump(nb::module_& m);

namespace {

// Path, and by section: table (-1 = skip) and entries (-1 = to the end).
using ImportFile = std::pair<std::string, std::vector<std::pair<int, int64_t>>>;
using ExportFile =
    std::tuple<std::string, std::string, uint32_t, uint32_t>;  // path, temporary path, buckets [begin, end)

RecordCompression CompressionOf(bool snappy) { return snappy ? RecordCompression::kSnappy : RecordCompression::kNone; }

std::vector<DumpImportFile> ImportPlan(const std::vector<ImportFile>& files) {
  std::vector<DumpImportFile> plan;
  for (const auto& [path, sections] : files) {
    DumpImportFile file{path, {}};
    for (const auto& [table, entries] : sections) {
      file.sections.push_back({table, entries < 0 ? DumpSection::kToTheEnd : static_cast<uint64_t>(entries)});
    }
    plan.push_back(std::move(file));
  }
  return plan;
}

std::vector<DumpExportFile> ExportPlan(const std::vector<ExportFile>& files) {
  std::vector<DumpExportFile> plan;
  for (const auto& [path, temporary_path, begin, end] : files) plan.push_back({path, temporary_path, begin, end});
  return plan;
}

using RecordList = nb::typed<nb::list, nb::bytes>;

RecordList ReadRecords(const std::string& path, bool snappy) {
  RecordReader reader(path, CompressionOf(snappy));
  nb::list records;
  for (std::string_view record; reader.Next(&record);) records.append(nb::bytes(record.data(), record.size()));
  return records;
}

void WriteRecords(const std::string& path, const std::string& temporary_path, const RecordList& records, bool snappy) {
  OutputFile file(path, temporary_path);
  RecordWriter writer(&file, CompressionOf(snappy));
  for (nb::handle record : records) {
    const auto bytes = nb::cast<nb::bytes>(record);
    writer.Append({bytes.c_str(), bytes.size()});
  }
  writer.Flush();
  file.Commit();
}

using PayloadArray = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using WeightArray = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void DecompressRows(const Group& group, int table, const PayloadArray& payload, const WeightArray& weights) {
  const TableSpec& spec = group.table(table).spec;
  if (payload.shape(1) != static_cast<size_t>(spec.serving_payload_bytes()) || payload.shape(0) != weights.shape(0) ||
      weights.shape(1) != static_cast<size_t>(spec.dim())) {
    throw Error(Code::kInvalidArgument, "table '" + spec.name + "': payload and weights do not have the table's shape");
  }
  const nb::gil_scoped_release release;
  for (size_t row = 0; row < payload.shape(0); ++row) {
    spec.Decompress(reinterpret_cast<const std::byte*>(payload.data() + row * payload.shape(1)),
                    weights.data() + row * weights.shape(1));
  }
}

using TimeArray = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Encodes rows of a training table as EntryDump messages without ids.
RecordList EncodeEntries(const Group& group, int table, const PayloadArray& payload, const TimeArray& times) {
  const TableSpec& spec = group.table(table).spec;
  const auto codec = MakeEntryDumpCodec(spec);
  if (payload.shape(1) != codec->payload_bytes() || payload.shape(0) != times.shape(0)) {
    throw Error(Code::kInvalidArgument, "table '" + spec.name + "': payload and times do not have the table's shape");
  }
  nb::list records;
  std::string record;
  for (size_t row = 0; row < payload.shape(0); ++row) {
    codec->EncodeWithoutId(static_cast<uint32_t>(times.data()[row]),
                           reinterpret_cast<const std::byte*>(payload.data() + row * payload.shape(1)), &record);
    records.append(nb::bytes(record.data(), record.size()));
  }
  return records;
}

}  // namespace

void BindEntryDump(nb::module_& m) {
  m.def("read_records", &ReadRecords, "path"_a, nb::kw_only(), "snappy"_a);
  m.def("write_records", &WriteRecords, "path"_a, "temporary_path"_a, "records"_a, nb::kw_only(), "snappy"_a);
  m.def(
      "import_entry_dump",
      [](Group& group, const std::vector<ImportFile>& files, bool snappy, bool check_only, int threads,
         TransferProgress& transfer) {
        const nb::gil_scoped_release release;
        return ImportEntryDump(group, ImportPlan(files), CompressionOf(snappy), threads, !check_only, &transfer);
      },
      "group"_a, "files"_a, nb::kw_only(), "snappy"_a, "check_only"_a, "threads"_a, "transfer"_a);
  m.def(
      "export_entry_dump",
      [](const Group& group, Cut& cut, const std::vector<ExportFile>& files, const std::vector<int>& tables,
         bool snappy, bool drop_expired, int threads, TransferProgress& transfer) {
        const nb::gil_scoped_release release;
        return ExportEntryDump(group, cut, ExportPlan(files), tables, CompressionOf(snappy), drop_expired, threads,
                               &transfer);
      },
      "group"_a, "cut"_a, "files"_a, "tables"_a, nb::kw_only(), "snappy"_a, "drop_expired"_a, "threads"_a,
      "transfer"_a);
  m.def("encode_entries", &EncodeEntries, "group"_a, "table"_a, "payload"_a.noconvert(), "times"_a.noconvert());
  m.def("decompress_rows", &DecompressRows, "group"_a, "table"_a, "payload"_a.noconvert(), "weights"_a.noconvert());
}

}  // namespace monolith
