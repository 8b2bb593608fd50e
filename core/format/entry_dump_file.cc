#include "format/entry_dump_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/hash.h"

namespace monolith {
namespace {

// Rows are regrouped by bucket in batches of about this many bytes: enough rows per bucket for efficient blocks.
constexpr size_t kBatchBytes = size_t{64} << 20;

// Collects rows in any order and passes them on as one block per bucket.
class BlockCollector {
 public:
  BlockCollector(const RowBlockHeader& header, size_t payload_bytes, const BlockSink& sink)
      : header_(header), payload_bytes_(payload_bytes), limit_(kBatchBytes / (payload_bytes + 12) + 1), sink_(sink) {
    header_.payload_bytes_per_row = static_cast<uint32_t>(payload_bytes);
  }

  // Returns the destination of the payload of the next row; Keep() accepts it.
  std::byte* Place() {
    payloads_.resize((keys_.size() + 1) * payload_bytes_);
    return payloads_.data() + keys_.size() * payload_bytes_;
  }
  void Keep(int64_t key, uint32_t time) {
    keys_.push_back(key);
    times_.push_back(time);
    ++kept_;
    if (keys_.size() == limit_) Flush();
  }

  uint64_t kept() const { return kept_; }

  void Flush() {
    if (sink_ && !keys_.empty()) sink_(Blocks());
    keys_.clear();
    times_.clear();
    payloads_.clear();
  }

 private:
  std::vector<std::string> Blocks() {
    std::array<uint32_t, kNumBuckets> counts{};
    for (const int64_t key : keys_) ++counts[BucketOf(key)];
    std::vector<std::unique_ptr<RowBlockBuilder>> builders(kNumBuckets);
    for (size_t row = 0; row < keys_.size(); ++row) {
      const uint32_t bucket = BucketOf(keys_[row]);
      if (!builders[bucket]) {
        header_.bucket = bucket;
        builders[bucket] = std::make_unique<RowBlockBuilder>(header_, counts[bucket]);
      }
      std::memcpy(builders[bucket]->Add(keys_[row], times_[row]), payloads_.data() + row * payload_bytes_,
                  payload_bytes_);
    }
    std::vector<std::string> blocks;
    for (const auto& builder : builders) {
      if (builder) blocks.push_back(builder->Finish());
    }
    return blocks;
  }

  RowBlockHeader header_;
  size_t payload_bytes_;
  size_t limit_;
  const BlockSink& sink_;
  uint64_t kept_ = 0;
  std::vector<int64_t> keys_;
  std::vector<uint32_t> times_;
  std::vector<std::byte> payloads_;
};

// The squared length is below the smallest normal float; NaN is not.
bool IsAlmostZero(const std::byte* weights, int count) {
  float sum = 0.0f;
  for (int i = 0; i < count; ++i) {
    float weight;
    std::memcpy(&weight, weights + 4 * static_cast<size_t>(i), 4);
    sum += weight * weight;
  }
  return sum < std::numeric_limits<float>::min();
}

[[noreturn]] void ThrowUnparsable(const RecordReader& reader, bool sectioned) {
  if (sectioned) throw Error(Code::kDataLoss, "Parse entry failed! (" + reader.Place() + ")");
  throw Error(Code::kFailedPrecondition, "Unable to parse data. Data might be corrupted (" + reader.Place() + ")");
}

void DecodeInto(const DumpSection& section, std::string_view record, const RecordReader& reader,
                BlockCollector* collector) {
  int64_t key;
  uint32_t time;
  std::byte* payload = collector->Place();
  try {
    if (!section.codec->Decode(record, &key, &time, payload)) ThrowUnparsable(reader, section.IsCounted());
  } catch (const Error& error) {
    if (error.code() != Code::kInvalidArgument) throw;
    throw Error(Code::kInvalidArgument, reader.Place() + ": " + error.what());
  }
  if (section.skip_zero && IsAlmostZero(payload, section.codec->dim())) return;
  collector->Keep(key, time);
}

uint64_t ReadSection(const DumpSection& section, RecordReader* reader, const BlockSink& sink,
                     TransferProgress* progress) {
  const size_t payload_bytes = section.codec == nullptr ? 0 : section.codec->payload_bytes();
  BlockCollector collector(section.header, payload_bytes, sink);
  std::string_view record;
  uint64_t entries = 0;
  for (; entries < section.entries && reader->Next(&record); ++entries) {
    if (progress->cancelled.load(std::memory_order_relaxed))
      throw Error(Code::kFailedPrecondition, "cancelled by the caller");
    if (section.codec != nullptr) DecodeInto(section, record, *reader, &collector);
  }
  if (section.IsCounted() && entries < section.entries) {
    throw Error(Code::kDataLoss, "Parse entry failed! (" + reader->Place() + ": " + std::to_string(section.entries) +
                                     " entries announced, the file ends after " + std::to_string(entries) + ")");
  }
  collector.Flush();
  progress->blocks.fetch_add(1, std::memory_order_relaxed);
  return collector.kept();
}

// Writes the records of one table while the blocks of a cut arrive bucket by bucket. The first table writes to the file
// itself; the others are buffered in temporary files, whose bytes are appended to it at the end.
class TableStream {
 public:
  TableStream(OutputFile* file, RecordCompression compression) : file_(file), writer_(file, compression) {}
  TableStream(const std::string& waiting_path, RecordCompression compression)
      : waiting_(std::make_unique<OutputFile>(waiting_path, waiting_path)),
        file_(waiting_.get()),
        writer_(file_, compression) {}

  void Append(const RowBlockView& block, const EntryDumpCodec& codec) {
    for (uint32_t row = 0; row < block.count(); ++row) {
      codec.Encode(block.key(row), block.time(row), block.payload(row), &record_);
      writer_.Append(record_);
    }
    entries_ += block.count();
  }
  uint64_t entries() const { return entries_; }

  void MoveBehind(OutputFile* target) {
    writer_.Flush();
    if (!waiting_) return;
    const InputFile source(waiting_->Written());
    std::string piece;
    for (uint64_t at = 0; at < source.size(); at += piece.size()) {
      piece.resize(std::min<uint64_t>(uint64_t{4} << 20, source.size() - at));
      source.ReadAt(at, piece.data(), piece.size());
      target->Append(piece);
    }
    waiting_.reset();  // removes the file
  }

 private:
  std::unique_ptr<OutputFile> waiting_;
  OutputFile* file_;
  RecordWriter writer_;
  std::string record_;
  uint64_t entries_ = 0;
};

void CheckBlock(const RowBlockHeader& header, const EntryDumpCodec& codec) {
  if (header.kind == BlockKind::kServing)
    throw Error(Code::kFailedPrecondition, "ServingEntryAccessor doesn't support Save");
  MONOLITH_CHECK(header.payload_bytes_per_row == codec.payload_bytes());
}

}  // namespace

uint64_t ReadEntryDumpFile(const std::string& path, RecordCompression compression,
                           const std::vector<DumpSection>& sections, const BlockSink& sink,
                           TransferProgress* progress) {
  RecordReader reader(path, compression);
  uint64_t rows = 0;
  for (const DumpSection& section : sections) rows += ReadSection(section, &reader, sink, progress);
  std::string_view rest;
  if (reader.Next(&rest)) throw Error(Code::kDataLoss, reader.Place() + ": more entries than the metadata announces");
  progress->bytes.fetch_add(reader.bytes_read(), std::memory_order_relaxed);
  return rows;
}

std::vector<uint64_t> WriteEntryDumpFile(BlockSource* source, const std::vector<const EntryDumpCodec*>& codecs,
                                         const DumpFilePlan& plan, TransferProgress* progress) {
  OutputFile file(plan.path, plan.temporary_path);
  std::vector<std::unique_ptr<TableStream>> streams(codecs.size());
  bool first = true;
  for (size_t table = 0; table < codecs.size(); ++table) {
    if (codecs[table] == nullptr) continue;
    const std::string waiting_path = plan.temporary_path + "-table-" + std::to_string(table);
    streams[table] = first ? std::make_unique<TableStream>(&file, plan.compression)
                           : std::make_unique<TableStream>(waiting_path, plan.compression);
    first = false;
  }
  std::string block;
  while (source->Next(&block)) {
    if (progress->cancelled.load(std::memory_order_relaxed))
      throw Error(Code::kFailedPrecondition, "cancelled by the caller");
    const RowBlockView view(block, RowBlockView::Trusted{});
    const RowBlockHeader& header = view.header();
    if (header.kind == BlockKind::kTombstone || header.kind == BlockKind::kFilter) continue;
    if (header.table >= codecs.size() || codecs[header.table] == nullptr) continue;
    CheckBlock(header, *codecs[header.table]);
    streams[header.table]->Append(view, *codecs[header.table]);
    progress->blocks.fetch_add(1, std::memory_order_relaxed);
  }
  std::vector<uint64_t> entries(codecs.size(), 0);
  for (size_t table = 0; table < codecs.size(); ++table) {
    if (!streams[table]) continue;
    entries[table] = streams[table]->entries();
    streams[table]->MoveBehind(&file);
  }
  progress->bytes.fetch_add(file.size(), std::memory_order_relaxed);
  file.Commit();
  return entries;
}

}  // namespace monolith
