// Samples that come column by column.
#include "data/packed_list.h"
#include "data/sample_reader.h"
#include "format/proto_wire.h"

namespace monolith {
namespace {

constexpr uint64_t kShared = 1;

}  // namespace

int64_t SampleReader::BatchSize(std::string_view record) {
  WireReader reader(record);
  int32_t size = 0;
  while (reader.Next()) {
    if (reader.tag() == TagOf(3, WireType::kVarint)) size = static_cast<int32_t>(reader.number());
  }
  return reader.ok() ? size : -1;
}

bool SampleReader::ReadExampleBatch(std::string_view record, RowCells row, int64_t rows) {
  WireReader reader(record);
  next_ = 0;
  while (reader.Next()) {
    if (reader.tag() == TagOf(1, WireType::kBytes) && !ReadFeatureList(reader.bytes(), row, rows)) return false;
  }
  if (!reader.ok()) return Refuse("not an ExampleBatch: its wire form is malformed");
  if (!schema_.wants_line_id()) return true;
  for (int64_t i = 0; i < rows; ++i) {
    if (!ReadLineIdOf({row.first + i, row.stride}, {})) return false;
  }
  return true;
}

bool SampleReader::ReadFeatureList(std::string_view message, RowCells row, int64_t rows) {
  WireReader reader(message);
  std::string_view name;
  uint64_t type = 0;
  features_.clear();
  while (reader.Next()) {
    if (reader.tag() == TagOf(1, WireType::kBytes)) {
      name = reader.bytes();
    } else if (reader.tag() == TagOf(2, WireType::kBytes)) {
      features_.push_back(reader.bytes());
    } else if (reader.tag() == TagOf(3, WireType::kVarint)) {
      type = reader.number();
    }
  }
  if (!reader.ok()) return Refuse("a NamedFeatureList is malformed");
  const int source = Find(name);
  return source < 0 || StoreList(source, type == kShared, row, rows);
}

bool SampleReader::StoreList(int source, bool is_shared, RowCells row, int64_t rows) {
  if (is_shared && features_.empty()) return RefuseFeature(source, "is SHARED and holds nothing, expected one entry");
  const auto entries = static_cast<int64_t>(features_.size());
  if (!is_shared && entries != rows) {
    const std::string counts = std::to_string(entries) + " entries for a batch of " + std::to_string(rows) + " rows";
    return RefuseFeature(source, ("has " + counts).c_str());
  }
  if (rows == 0) return true;
  Cell* cells = &row[source];
  Cell cell;
  for (int64_t i = 0; i < rows; ++i) {
    if (!is_shared || i == 0) {
      cell = {};
      if (!ReadFeature(features_[static_cast<size_t>(i)], &cell))
        return RefuseFeature(source, ("is malformed: " + problem_).c_str());
    }
    if (!Store(source, cell, cells + i)) return false;
  }
  return true;
}

}  // namespace monolith
