// tf.train.Example: a map from names to lists.
#include "data/packed_list.h"
#include "data/sample_reader.h"
#include "format/proto_wire.h"

namespace monolith {
namespace {

constexpr CellKind kTfKinds[] = {CellKind::kAbsent, CellKind::kBytes, CellKind::kFloat, CellKind::kInt64};

}  // namespace

bool SampleReader::ReadTfFeature(std::string_view feature, Cell* cell) {
  WireReader reader(feature);
  uint32_t last = 0;
  while (reader.Next()) {
    const uint32_t number = reader.tag() >> 3;
    if (number >= std::size(kTfKinds) || reader.tag() != TagOf(number, WireType::kBytes)) continue;
    if (!ReadFeatureField(number, kTfKinds[number], reader.bytes(), &last, cell)) return false;
  }
  return reader.ok() || Refuse("a Feature is malformed");
}

bool SampleReader::ReadTfEntry(std::string_view message, RowCells row) {
  WireReader reader(message);
  std::string_view name;
  Cell feature;
  while (reader.Next()) {
    if (reader.tag() == TagOf(1, WireType::kBytes)) name = reader.bytes();
    if (reader.tag() == TagOf(2, WireType::kBytes)) Append(CellOf(CellKind::kText, reader.bytes()), arena_, &feature);
  }
  if (!reader.ok()) return Refuse("an entry of Features is malformed");
  const int source = Find(name);
  if (source < 0) return true;
  Cell cell;
  if (!ReadTfFeature(feature.view(), &cell)) return RefuseFeature(source, ("is malformed: " + problem_).c_str());
  // A map: of two entries with one name the later one is used.
  row[source] = {};
  return Store(source, cell, &row[source]);
}

bool SampleReader::ReadTfExample(std::string_view record, RowCells row) {
  WireReader reader(record);
  next_ = 0;
  while (reader.Next()) {
    if (reader.tag() != TagOf(1, WireType::kBytes)) continue;
    WireReader entries(reader.bytes());
    while (entries.Next()) {
      if (entries.tag() == TagOf(1, WireType::kBytes) && !ReadTfEntry(entries.bytes(), row)) return false;
    }
    if (!entries.ok()) return Refuse("Features is malformed");
  }
  return reader.ok() || Refuse("not a tf.train.Example: its wire form is malformed");
}

}  // namespace monolith
