#include "table/loader.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace monolith {
namespace {

constexpr std::string_view kWideSlotsPart = "wide_slots=";

struct SourceSegment {
  int dim;
  std::string optimizer;
  int state_bytes;
  std::string compressor;
};

[[noreturn]] void Refuse(const std::string& message) { throw Error(Code::kInvalidArgument, message); }

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char each : text) {
    if (each == separator) {
      parts.emplace_back();
    } else {
      parts.back().push_back(each);
    }
  }
  return parts;
}

int PositiveNumber(const std::string& text, const std::string& schema) {
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < 0 || value > (1 << 24))
    Refuse("schema text not understood: '" + schema + "'");
  return static_cast<int>(value);
}

struct SourceSchema {
  std::vector<int32_t> wide_slots;
  std::vector<SourceSegment> segments;
};

// "monolith-table/1;serving=0;wide_slots=<number>,...;segment=<dim>,<optimizer>,<state bytes>,<compressor>,<compressed
// bytes>;..."; the wide slots may be missing.
SourceSchema ParseSchema(const std::string& schema) {
  const std::vector<std::string> parts = Split(schema, ';');
  if (parts.size() < 3 || parts[0] != "monolith-table/1") Refuse("schema text not understood: '" + schema + "'");
  SourceSchema parsed;
  size_t first_segment = 2;
  if (parts[2].starts_with(kWideSlotsPart)) {
    first_segment = 3;
    for (const std::string& number : Split(parts[2].substr(kWideSlotsPart.size()), ',')) {
      parsed.wide_slots.push_back(PositiveNumber(number, schema));
    }
  }
  std::vector<SourceSegment>& segments = parsed.segments;
  for (size_t i = first_segment; i < parts.size(); ++i) {
    const std::vector<std::string> fields = Split(parts[i].substr(std::min<size_t>(8, parts[i].size())), ',');
    if (parts[i].rfind("segment=", 0) != 0 || fields.size() != 5)
      Refuse("schema text not understood: '" + schema + "'");
    segments.push_back({PositiveNumber(fields[0], schema), fields[1], PositiveNumber(fields[2], schema), fields[3]});
  }
  return parsed;
}

const char* NameOf(BlockKind kind) {
  switch (kind) {
    case BlockKind::kFull: return "FULL";
    case BlockKind::kServing: return "SERVING";
    case BlockKind::kTombstone: return "TOMBSTONE";
    case BlockKind::kFilter: return "FILTER";
  }
  return "UNKNOWN";
}

// 0x and 16 digits, as Python tools print a digest.
std::string HexOf(uint64_t number) {
  char digits[16];
  const auto end = std::to_chars(digits, digits + sizeof(digits), number, 16).ptr;
  const std::string text(digits, end);
  return "0x" + std::string(sizeof(digits) - text.size(), '0') + text;
}

[[noreturn]] void RefuseForeign(const RowBlockHeader& header) {
  const std::string table = std::to_string(header.table);
  throw Error(Code::kFailedPrecondition, std::string("RowBlock(") + NameOf(header.kind) + ", table=" + table +
                                             ", bucket=" + std::to_string(header.bucket) +
                                             ", count=" + std::to_string(header.count) + ") has schema digest " +
                                             HexOf(header.digest) + ", which is not that of this store's table " +
                                             table + "; compare the two stores' schema.text");
}

}  // namespace

Loader::Loader(Group& group, uint32_t begin, uint32_t end, const std::vector<std::string>& source_schemas)
    : group_(group), call_(group.gate_), begin_(begin), end_(end) {
  if (begin > end || end > kNumBuckets) Refuse("buckets must be a range in [0, 1024]");
  for (const auto& table : group_.tables_) {
    const bool given = table->number < source_schemas.size() && !source_schemas[table->number].empty();
    maps_.push_back(MapFrom(*table, given ? source_schemas[table->number] : table->spec.SchemaText(false)));
    // Without a schema of the source, the table's own rows and those of its serving or training twin are accepted.
    maps_.back().schema_given = given;
    if (!given) maps_.back().digests = {table->digest, DigestOf(table->spec.SchemaText(!table->spec.serving))};
  }
}

Loader::RowMap Loader::MapFrom(const Table& table, const std::string& source_schema) const {
  const TableSpec& spec = table.spec;
  SourceSchema parsed = ParseSchema(source_schema);
  const std::vector<SourceSegment>& source = parsed.segments;
  const std::string where = "table '" + spec.name + "': ";
  if (source.size() > spec.segments().size()) {
    Refuse(where + "the source has " + std::to_string(source.size()) + " segments, the table " +
           std::to_string(spec.segments().size()) + "; a segment cannot be dropped");
  }
  int dims = 0, bytes = 0;
  for (const SourceSegment& segment : source) dims += segment.dim, bytes += 4 * segment.dim + segment.state_bytes;
  RowMap map{true, {DigestOf(source_schema)}, bytes, source_schema == spec.SchemaText(), true, {}, {}, {}, true};
  for (const int32_t number : parsed.wide_slots) {
    const auto ours = std::lower_bound(spec.wide_slots().begin(), spec.wide_slots().end(), number);
    const bool is_ours = ours != spec.wide_slots().end() && *ours == number;
    map.our_index.push_back(is_ours ? static_cast<int32_t>(ours - spec.wide_slots().begin()) : kDropped);
    map.same_keys = map.same_keys && map.our_index.back() + 1 == static_cast<int32_t>(map.our_index.size());
  }
  map.wide_slots = std::move(parsed.wide_slots);
  int from_weights = 0, from_state = 4 * dims;
  for (size_t i = 0; i < source.size(); ++i) {
    const Segment& ours = spec.segments()[i];
    if (source[i].dim != ours.dim) {
      Refuse(where + "segment " + std::to_string(i) + " has dim " + std::to_string(source[i].dim) +
             " in the source and dim " + std::to_string(ours.dim) + " in the table; dims must be equal");
    }
    map.same_compressors = map.same_compressors && source[i].compressor == ours.compressor_kind;
    map.copies.push_back({from_weights, 4 * ours.first_dim, 4 * ours.dim});
    if (source[i].optimizer == ours.optimizer_kind && source[i].state_bytes == ours.state_bytes &&
        ours.state_bytes > 0) {
      map.copies.push_back({from_state, ours.state_offset, ours.state_bytes});
    }
    from_weights += 4 * source[i].dim;
    from_state += source[i].state_bytes;
  }
  if (spec.serving && source.size() != spec.segments().size()) {
    Refuse(where + "a serving table takes rows with all of its segments");
  }
  return map;
}

bool Loader::Fits(const Table& table, const RowBlockView& block) const {
  const RowMap& map = maps_[table.number];
  const bool known = std::find(map.digests.begin(), map.digests.end(), block.header().digest) != map.digests.end();
  return known && (block.header().kind != BlockKind::kServing || map.same_compressors);
}

bool Loader::IsBlank(const Group& group) {
  const Gate::Shared call(group.gate_);
  for (const auto& table : group.tables_) {
    if (table->Size() != 0 || table->newest_time.load(std::memory_order_relaxed) != 0) return false;
  }
  for (uint32_t number = 0; number < kNumBuckets; ++number) {
    BucketGuard guard(group.locks_[number], Access::kReads);
    if (group.buckets_[number].filter != nullptr || !group.buckets_[number].tombstones.empty()) return false;
  }
  return true;
}

const Table& Loader::TableFor(const RowBlockView& block) const {
  const uint32_t number = block.header().table;
  if (number >= group_.tables_.size()) RefuseForeign(block.header());
  const Table& table = *group_.tables_[number];
  if (Fits(table, block)) return table;
  if (!maps_[number].schema_given) RefuseForeign(block.header());
  Refuse("table '" + table.spec.name + "': the block has another schema than '" + table.spec.SchemaText() +
         "'; give the schema of its source");
}

void Loader::CheckKey(const Table& table, const RowBlockHeader& header, int64_t key) const {
  const RowMap& map = maps_[table.number];
  const bool is_wide = !map.wide_slots.empty() && IsWideKey(key);
  if (!is_wide && BucketOf(key) != header.bucket) {
    Refuse("a block of bucket " + std::to_string(header.bucket) + " holds id " + std::to_string(key) +
           ", which belongs to another");
  }
  if (is_wide && WideIndexOf(key) >= map.wide_slots.size()) {
    Refuse("a block of bucket " + std::to_string(header.bucket) + " holds key " + std::to_string(key) +
           " of a slot that its schema does not have");
  }
  if (is_wide && table.spec.wide_slots().empty()) {
    Refuse("table '" + table.spec.name + "': rows of ids beyond [0, 2^48) come for slot number " +
           std::to_string(map.wide_slots[WideIndexOf(key)]) +
           ", and no slot of this table takes such ids; give the slot id_layout='int64'");
  }
  if (!is_wide && IsWideKey(key) && !table.spec.wide_slots().empty()) {
    Refuse("table '" + table.spec.name + "': slots share it, and a block holds id " + std::to_string(key) +
           " of a table of one slot alone");
  }
}

bool Loader::TakesKey(const RowMap& map, int64_t* key) {
  if (map.same_keys || !IsWideKey(*key)) return true;
  const int32_t index = map.our_index[WideIndexOf(*key)];
  if (index == kDropped) return false;
  *key = WithWideIndex(*key, static_cast<uint32_t>(index));
  return true;
}

void Loader::Check(const RowBlockView& block) const {
  const RowBlockHeader& header = block.header();
  if (!Covers(block)) {
    Refuse("block of bucket " + std::to_string(header.bucket) + " is outside of [" + std::to_string(begin_) + ", " +
           std::to_string(end_) + ")");
  }
  if (header.kind == BlockKind::kFilter) {
    if (group_.admission_ != nullptr) group_.admission_->MakeSlice()->Load(std::string(block.payload_bytes()));
    return;
  }
  const Table& table = TableFor(block);
  for (uint32_t i = 0; i < block.count(); ++i) CheckKey(table, header, block.key(i));
  const int expected = header.kind == BlockKind::kFull      ? maps_[table.number].source_bytes
                       : header.kind == BlockKind::kServing ? table.spec.serving_payload_bytes()
                                                            : 0;
  if (static_cast<int>(header.payload_bytes_per_row) != expected) {
    Refuse("table '" + table.spec.name + "': a row of the block has " + std::to_string(header.payload_bytes_per_row) +
           " bytes, expected " + std::to_string(expected));
  }
}

}  // namespace monolith
