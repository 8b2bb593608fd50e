// Reads samples that are stored column by column.
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
  joined_ = 0;
  while (reader.Next()) {
    if (reader.tag() == TagOf(1, WireType::kBytes) && !ReadFeatureList(reader.bytes(), row, rows)) return false;
  }
  if (!reader.ok()) return Refuse("not an ExampleBatch: its wire form is malformed");
  return !schema_.wants_line_id() || ReadLineIds(row, rows);
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
  if (source < 0) return true;
  // Without rows there are no cells, but the list is checked all the same.
  Cell* cells = rows == 0 ? nullptr : &row[source];
  return type == kShared ? StoreShared(source, cells, rows) : StoreEntries(source, cells, rows);
}

bool SampleReader::StoreEntries(int source, Cell* cells, int64_t rows) {
  const auto entries = static_cast<int64_t>(features_.size());
  if (entries != rows) {
    const std::string counts = std::to_string(entries) + " entries for a batch of " + std::to_string(rows) + " rows";
    return RefuseFeature(source, ("has " + counts).c_str());
  }
  for (int64_t i = 0; i < rows; ++i) {
    Cell cell;
    if (!ReadFeature(features_[static_cast<size_t>(i)], &cell))
      return RefuseFeature(source, ("is malformed: " + problem_).c_str());
    if (!Store(source, cell, cells + i)) return false;
  }
  return true;
}

bool SampleReader::StoreShared(int source, Cell* cells, int64_t rows) {
  if (features_.empty()) return RefuseFeature(source, "is SHARED and holds nothing, expected one entry");
  Cell cell;
  if (!ReadFeature(features_.front(), &cell)) return RefuseFeature(source, ("is malformed: " + problem_).c_str());
  arena_->Share(cell.view());
  Cell before;
  for (int64_t i = 0; i < rows; ++i) {
    if (i > 0 && IsSame(cells[i], before)) {
      cells[i] = cells[i - 1];
      continue;
    }
    before = cells[i];
    if (before.kind != CellKind::kAbsent) joined_ += before.size + cell.size;
    if (joined_ > most_joined_) {
      const std::string limit = std::to_string(most_joined_);
      return RefuseFeature(source, ("is joined from lists of more than the " + limit +
                                    " bytes that one record may become (max_parsed_bytes)")
                                       .c_str());
    }
    if (!Store(source, cell, cells + i)) return false;
    arena_->Share(cells[i].view());
  }
  return true;
}

bool SampleReader::ReadLineIds(RowCells row, int64_t rows) {
  const int feature = schema_.line_id_feature();
  for (int64_t i = 0; i < rows; ++i) {
    const RowCells own{row.first + i, row.stride};
    if (i == 0 || !IsSame(own[feature], (&own[feature])[-1])) {
      if (!ReadLineIdOf(own, {})) return false;
      continue;
    }
    // A LineId that all rows share is read once.
    for (const auto& [number, found] : schema_.line_sources()) own[found.first] = (&own[found.first])[-1];
  }
  return true;
}

}  // namespace monolith
