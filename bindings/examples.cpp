// Samples: finding records in a stream, and parsing records into the arrays of a batch.
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings.h"
#include "chunk.h"
#include "data/batch_parser.h"
#include "data/file_read.h"
#include "data/frame_read.h"
#include "data/frame_scan.h"
#include "data/framing.h"
#include "data/schema.h"
#include "format/crc32c.h"
#include "format/snappy.h"
#include "parsed_batch.h"
#include "vector_array.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names only

namespace monolith {
namespace {

using ByteArray = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WritableBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// Name, kind, width, slot.
using ColumnTuple = std::tuple<std::string, int, int64_t, int64_t>;

std::string_view ViewOf(const ByteArray& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

using ScanTuple = std::tuple<VectorArray<int64_t>, uint64_t, uint64_t, int, std::string, uint64_t>;

ScanTuple TupleOf(FrameScan&& scan) {
  return {ArrayOf(std::move(scan.spans)), scan.consumed,          scan.wanted,
          static_cast<int>(scan.problem), std::move(scan.reason), scan.resume};
}

ScanTuple ScanBytes(const ByteArray& bytes, uint64_t begin, uint32_t framing, bool at_end, uint64_t max_record_bytes,
                    uint64_t max_records) {
  if (begin > bytes.size()) throw Error(Code::kInvalidArgument, "begin lies after the end of the bytes");
  FrameScan scan = WithoutGil(
      [&] { return ScanFrames(ViewOf(bytes), begin, Framing(framing), at_end, {max_record_bytes, max_records}); });
  return TupleOf(std::move(scan));
}

using ReadTuple = std::pair<VectorArray<uint8_t>, ScanTuple>;

ReadTuple ReadAndScan(int descriptor, uint64_t offset, const ByteArray& kept, uint64_t size, uint32_t framing,
                      uint64_t max_record_bytes) {
  if (kept.size() > size) throw Error(Code::kInvalidArgument, "more bytes are kept than there is room for");
  auto chunk = std::make_unique<Chunk>(size);
  FrameRead read = WithoutGil([&] {
    std::ranges::copy(ViewOf(kept), chunk->bytes().begin());
    return ReadFrames(descriptor, offset, chunk->bytes(), kept.size(), Framing(framing), max_record_bytes);
  });
  return {ArrayOfChunk(std::move(chunk), read.size), TupleOf(std::move(read.scan))};
}

void BindFramings(nb::module_& m) {
  nb::enum_<Framing::Part>(m, "FramingPart", nb::is_flag())
      .value("TFRECORD", Framing::kTfRecord)
      .value("LAGRANGEX", Framing::kLagrangex)
      .value("KAFKA_DUMP_PREFIX", Framing::kKafkaDumpPrefix)
      .value("SORT_ID", Framing::kSortId)
      .value("KAFKA_DUMP", Framing::kKafkaDump);
  m.def("framing_tail", [](uint32_t framing) { return Framing(framing).tail_bytes(); }, "framing"_a);
}

void BindFrames(nb::module_& m) {
  m.def("scan_frames", &ScanBytes, "bytes"_a.noconvert(), "begin"_a, nb::kw_only(), "framing"_a, "at_end"_a,
        "max_record_bytes"_a, "max_records"_a);
  m.def("read_frames", &ReadAndScan, "descriptor"_a, "offset"_a, "kept"_a.noconvert(), "size"_a, nb::kw_only(),
        "framing"_a, "max_record_bytes"_a);
  m.def("take_chunk", [](size_t size) { return ArrayOfChunk(std::make_unique<Chunk>(size), size); }, "size"_a);
  m.def(
      "read_file",
      [](int descriptor, uint64_t offset, const WritableBytes& target) {
        const std::span<char> bytes(reinterpret_cast<char*>(target.data()), target.size());
        return WithoutGil([&] { return ReadFile(descriptor, offset, bytes); });
      },
      "descriptor"_a, "offset"_a, "target"_a.noconvert());
  m.def(
      "find_tfrecord",
      [](const ByteArray& bytes, uint64_t begin) {
        return WithoutGil([&] { return FindTfRecord(ViewOf(bytes), begin); });
      },
      "bytes"_a.noconvert(), "begin"_a);
  m.def("masked_crc32c", [](const nb::bytes& bytes) { return MaskCrc(Crc32c(bytes.data(), bytes.size())); }, "bytes"_a);
  m.def(
      "snappy_compress",
      [](const nb::bytes& bytes) {
        std::string block;
        SnappyCompress({bytes.c_str(), bytes.size()}, &block);
        return nb::bytes(block.data(), block.size());
      },
      "bytes"_a);
  m.def(
      "snappy_uncompress",
      [](const nb::bytes& block) {
        std::string bytes;
        if (!SnappyUncompress({block.c_str(), block.size()}, &bytes))
          throw Error(Code::kDataLoss, "not a Snappy block");
        return nb::bytes(bytes.data(), bytes.size());
      },
      "block"_a);
}

// Returns records as views of one buffer; rejects spans outside of it.
std::vector<std::string_view> RecordsOf(const ByteArray& bytes, const IdArray& spans) {
  if (spans.size() % 2 != 0) throw Error(Code::kInvalidArgument, "spans must be pairs of offset and length");
  std::vector<std::string_view> records;
  records.reserve(spans.size() / 2);
  for (size_t i = 0; i < spans.size(); i += 2) {
    const auto offset = static_cast<uint64_t>(spans.data()[i]);
    const auto length = static_cast<uint64_t>(spans.data()[i + 1]);
    if (offset > bytes.size() || length > bytes.size() - offset) {
      throw Error(Code::kInvalidArgument, "span " + std::to_string(i / 2) + " does not lie in the buffer of " +
                                              std::to_string(bytes.size()) + " bytes");
    }
    records.push_back(ViewOf(bytes).substr(offset, length));
  }
  return records;
}

BatchTuple ParseSpans(const Schema& schema, const ByteArray& bytes, const IdArray& spans, bool skip_bad,
                      int64_t max_parsed_bytes) {
  ParsedBatch batch =
      WithoutGil([&] { return ParseBatch(schema, RecordsOf(bytes, spans), {skip_bad, max_parsed_bytes}); });
  return TupleOfBatch(std::move(batch));
}

BatchTuple ParseList(const Schema& schema, const nb::typed<nb::list, nb::bytes>& list, bool skip_bad,
                     int64_t max_parsed_bytes) {
  // The tuple keeps every record alive, even if another thread changes the list meanwhile.
  const nb::tuple kept(list);
  std::vector<std::string_view> records;
  for (nb::handle record : kept) {
    const auto bytes = nb::cast<nb::bytes>(record);
    records.emplace_back(bytes.c_str(), bytes.size());
  }
  ParsedBatch batch = WithoutGil([&] { return ParseBatch(schema, records, {skip_bad, max_parsed_bytes}); });
  return TupleOfBatch(std::move(batch));
}

}  // namespace

void BindExamples(nb::module_& m) {
  BindFramings(m);
  BindFrames(m);
  nb::class_<Schema>(m, "SampleSchema")
      .def(
          "__init__",
          [](Schema* self, int format, const std::vector<ColumnTuple>& columns) {
            new (self) Schema(static_cast<SampleFormat>(format), SpecsOf(columns));
          },
          "format"_a, "columns"_a)
      .def("parse_spans", &ParseSpans, "bytes"_a.noconvert(), "spans"_a.noconvert(), nb::kw_only(), "skip_bad"_a,
           "max_parsed_bytes"_a)
      .def("parse_list", &ParseList, "records"_a, nb::kw_only(), "skip_bad"_a, "max_parsed_bytes"_a);
  m.def(
      "line_id_fields",
      [] {
        std::vector<std::pair<std::string, int>> fields;
        for (const std::string& name : LineIdFieldNames())
          fields.emplace_back(name, static_cast<int>(FindLineIdField(name)->form));
        return fields;
      },
      "Name of every field of LineId that can be a column, and its form: 0 int, 1 float, 2 list of ints, 3 text.");
}

}  // namespace monolith
