#include "table/block_writer.h"

#include <algorithm>
#include <cstring>

namespace monolith {
namespace {

RowBlockHeader HeaderFor(const Table& table, BlockKind kind, uint32_t bucket, uint64_t epoch) {
  RowBlockHeader header;
  header.kind = kind;
  header.digest = table.digest;
  header.table = table.number;
  header.bucket = bucket;
  header.epoch = epoch;
  return header;
}

RowBlockHeader RowsHeader(const Table& table, uint32_t bucket, bool state, uint64_t epoch) {
  const bool full = state && !table.spec.serving;
  RowBlockHeader header = HeaderFor(table, full ? BlockKind::kFull : BlockKind::kServing, bucket, epoch);
  header.payload_bytes_per_row =
      static_cast<uint32_t>(full ? table.spec.training_payload_bytes() : table.spec.serving_payload_bytes());
  return header;
}

}  // namespace

BlockWriter::BlockWriter(const Table& table, uint32_t bucket, bool state, uint64_t epoch, uint32_t max_rows,
                         std::string memory)
    : spec_(table.spec),
      compress_(!state && !table.spec.serving),
      payload_bytes_(table.spec.payload_bytes()),
      builder_(RowsHeader(table, bucket, state, epoch), max_rows, std::move(memory)) {}

void BlockWriter::Add(const std::byte* record) {
  const RowHeader& header = *HeaderOf(record);
  std::byte* payload = builder_.Add(header.key, header.time);
  if (compress_) {
    spec_.Compress(reinterpret_cast<const float*>(PayloadOf(record)), payload);
  } else {
    std::memcpy(payload, PayloadOf(record), payload_bytes_);
  }
}

bool BuildTombstoneBlock(const Table& table, uint32_t bucket, const std::vector<Tombstone>& tombstones,
                         const RemovalRange& wanted, uint64_t epoch, std::string* block) {
  std::vector<const Tombstone*> found;
  const auto is_earlier = [&wanted](const Tombstone& tombstone) { return tombstone.epoch < wanted.first; };
  auto each = std::partition_point(tombstones.begin(), tombstones.end(), is_earlier);
  for (; each != tombstones.end(); ++each) {
    if (each->table == table.number && each->epoch <= wanted.last) found.push_back(&*each);
  }
  if (found.empty()) return false;
  RowBlockBuilder builder(HeaderFor(table, BlockKind::kTombstone, bucket, epoch), static_cast<uint32_t>(found.size()),
                          std::move(*block));
  for (const Tombstone* tombstone : found) {
    builder.Add(tombstone->key, static_cast<uint32_t>(wanted.base + tombstone->epoch));
  }
  *block = builder.Finish();
  return true;
}

}  // namespace monolith
