#include "data/sample_reader.h"

#include <cstring>

#include "data/packed_list.h"
#include "format/proto_wire.h"

namespace monolith {
namespace {

constexpr uint32_t kScalarInt = 12;
constexpr uint32_t kScalarFloat = 13;
constexpr uint32_t kScalarDouble = 14;
constexpr uint32_t kScalarBytes = 15;

// The kind of list that each member of Feature holds, by field number.
constexpr CellKind kFeatureKinds[] = {
    CellKind::kAbsent,     CellKind::kFidV1,      CellKind::kFidV2,      CellKind::kFloat,      CellKind::kDouble,
    CellKind::kInt64,      CellKind::kBytes,      CellKind::kFidV2Lists, CellKind::kFloatLists, CellKind::kDoubleLists,
    CellKind::kInt64Lists, CellKind::kBytesLists, CellKind::kAbsent,     CellKind::kAbsent,     CellKind::kAbsent,
    CellKind::kAbsent,     CellKind::kFidV1Lists,
};

bool IsIdLists(CellKind kind) { return kind == CellKind::kFidV1Lists || kind == CellKind::kFidV2Lists; }

// Reads a bare scalar as a list of one.
bool ReadScalar(const WireReader& field, Arena* arena, Cell* cell) {
  std::string bytes;
  if (field.tag() == TagOf(kScalarInt, WireType::kVarint)) {
    PutVarint(field.number(), &bytes);
    *cell = CellOf(CellKind::kInt64, arena->Keep(std::move(bytes)));
  } else if (field.tag() == TagOf(kScalarFloat, WireType::kFixed32)) {
    *cell = CellOf(CellKind::kFloat, {field.position() - 4, 4});
  } else if (field.tag() == TagOf(kScalarDouble, WireType::kFixed64)) {
    *cell = CellOf(CellKind::kDouble, {field.position() - 8, 8});
  } else if (field.tag() == TagOf(kScalarBytes, WireType::kBytes)) {
    bytes.push_back(static_cast<char>(TagOf(1, WireType::kBytes)));
    PutVarint(field.bytes().size(), &bytes);
    *cell = CellOf(CellKind::kBytes, arena->Keep(std::move(bytes.append(field.bytes()))));
  } else {
    return false;
  }
  return true;
}

// Reads the common case of a feature: a list of ids in one packed field, of fewer than 128 bytes. False: it is another,
// or malformed.
bool ReadShortIds(std::string_view feature, Cell* cell) {
  constexpr size_t kHeads = 4;  // tag and size of the list, tag and size of its field
  const size_t size = feature.size();
  if (size < kHeads || size >= 128 || size % 8 != kHeads) return false;
  const auto kind = static_cast<unsigned char>(feature[0]);
  if (kind != TagOf(1, WireType::kBytes) && kind != TagOf(2, WireType::kBytes)) return false;
  if (feature[1] != static_cast<char>(size - 2) || feature[2] != static_cast<char>(TagOf(1, WireType::kBytes)) ||
      feature[3] != static_cast<char>(size - kHeads))
    return false;
  *cell = CellOf(kFeatureKinds[kind >> 3], feature.substr(kHeads));
  return true;
}

}  // namespace

bool SampleReader::Refuse(std::string problem) {
  problem_ = std::move(problem);
  return false;
}

bool SampleReader::RefuseFeature(int source, const char* what) {
  return Refuse("feature '" + schema_.sources()[static_cast<size_t>(source)].name + "' " + what);
}

int SampleReader::Find(std::string_view name) {
  if (next_ < order_.size() && order_[next_].name == name) return order_[next_++].source;
  const int source = schema_.FindNamed(name);
  // Bounded, since a hostile sample may have any number of features.
  if (next_ < 4096) {
    if (next_ == order_.size()) order_.emplace_back();
    order_[next_] = {std::string(name), source};
    ++next_;
  }
  return source;
}

bool SampleReader::Store(int source, const Cell& cell, Cell* to) {
  if (cell.kind == CellKind::kAbsent) return true;
  const Source& place = schema_.sources()[static_cast<size_t>(source)];
  if ((place.accepted & SetOf(cell.kind)) == 0) {
    std::string expected;
    for (uint32_t kind = 1; kind <= static_cast<uint32_t>(CellKind::kText); ++kind) {
      if (place.accepted & (CellKinds{1} << kind))
        expected += (expected.empty() ? "" : " or ") + std::string(NameOf(static_cast<CellKind>(kind)));
    }
    return Refuse("feature '" + place.name + "' must hold " + expected + ", got " + NameOf(cell.kind));
  }
  if (to->kind != CellKind::kAbsent && to->kind != cell.kind) {
    return Refuse("feature '" + place.name + "' stands twice, as " + NameOf(to->kind) + " and as " + NameOf(cell.kind));
  }
  if (to->kind == CellKind::kAbsent) {
    *to = cell;
  } else {
    Append(cell, arena_, to);
  }
  return true;
}

bool SampleReader::ReadFeatureField(uint32_t number, CellKind kind, std::string_view bytes, uint32_t* last,
                                    Cell* cell) {
  Cell list;
  const bool is_good = IsIdLists(kind) ? ReadIdLists(bytes, kind, arena_, &list) : ReadList(bytes, kind, arena_, &list);
  if (!is_good) return Refuse(std::string("a ") + NameOf(kind) + " is malformed");
  // The wire format allows a member in parts; another member replaces it.
  if (*last == number) {
    Append(list, arena_, cell);
  } else {
    *cell = list;
  }
  *last = number;
  return true;
}

bool SampleReader::ReadFeature(std::string_view feature, Cell* cell) {
  if (ReadShortIds(feature, cell)) return true;
  WireReader reader(feature);
  uint32_t last = 0;
  while (reader.Next()) {
    const uint32_t number = reader.tag() >> 3;
    const CellKind kind = number < std::size(kFeatureKinds) ? kFeatureKinds[number] : CellKind::kAbsent;
    if (kind != CellKind::kAbsent && reader.tag() == TagOf(number, WireType::kBytes)) {
      if (!ReadFeatureField(number, kind, reader.bytes(), &last, cell)) return false;
    } else if (ReadScalar(reader, arena_, cell)) {
      last = 0;
    }
  }
  return reader.ok() || Refuse("a Feature is malformed");
}

bool SampleReader::ReadNamedFeature(std::string_view message, RowCells row) {
  WireReader reader(message);
  std::string_view name;
  Cell feature;  // a view of the message, extended when it comes in parts
  while (reader.Next()) {
    if (reader.tag() == TagOf(1, WireType::kBytes)) {
      name = reader.bytes();
    } else if (reader.tag() == TagOf(2, WireType::kBytes)) {
      Append(CellOf(CellKind::kText, reader.bytes()), arena_, &feature);
    }
  }
  if (!reader.ok()) return Refuse("a NamedFeature is malformed");
  const int source = Find(name);
  if (source < 0 || feature.kind == CellKind::kAbsent) return true;
  Cell cell;
  if (!ReadFeature(feature.view(), &cell)) return RefuseFeature(source, ("is malformed: " + problem_).c_str());
  return Store(source, cell, &row[source]);
}

bool SampleReader::ReadExample(std::string_view record, RowCells row) {
  WireReader reader(record);
  next_ = 0;
  Cell line_id;
  while (reader.Next()) {
    switch (reader.tag()) {
      case TagOf(1, WireType::kBytes):
        if (!ReadNamedFeature(reader.bytes(), row)) return false;
        break;
      case TagOf(100, WireType::kBytes): Append(CellOf(CellKind::kText, reader.bytes()), arena_, &line_id); break;
      case TagOf(101, WireType::kBytes):
      case TagOf(101, WireType::kFixed32):
        if (schema_.label() >= 0 && !AppendField(reader, CellKind::kFloat, arena_, &row[schema_.label()]))
          return Refuse("label is malformed");
        break;
      case TagOf(102, WireType::kFixed32):
        if (schema_.weight() >= 0) row[schema_.weight()] = CellOf(CellKind::kFloat, {reader.position() - 4, 4});
        break;
      default: break;
    }
  }
  if (!reader.ok()) return Refuse("not an Example: its wire form is malformed");
  return ReadLineIdOf(row, line_id);
}

bool SampleReader::ReadLineIdOf(RowCells row, const Cell& typed) {
  if (!schema_.wants_line_id()) return true;
  const int feature = schema_.line_id_feature();
  if (feature < 0 || row[feature].kind == CellKind::kAbsent)
    return typed.kind == CellKind::kAbsent || ReadLineId(typed.view(), row);
  WireReader reader(row[feature].view());
  while (reader.Next()) {
    if (reader.tag() == TagOf(1, WireType::kBytes)) return ReadLineId(reader.bytes(), row);
  }
  return true;
}

bool SampleReader::ReadLineId(std::string_view message, RowCells row) {
  WireReader reader(message);
  while (reader.Next()) {
    const auto found = schema_.line_sources().find(reader.tag() >> 3);
    if (found == schema_.line_sources().end()) continue;
    const auto& [source, field] = found->second;
    const auto type = static_cast<WireType>(reader.tag() & 7);
    Cell& cell = row[source];
    if (field->form == LineIdForm::kInts) {
      if (!AppendField(reader, CellKind::kInt32, arena_, &cell)) return Refuse("LineId is malformed");
    } else if (field->form == LineIdForm::kFloat && type == WireType::kFixed32) {
      cell = CellOf(CellKind::kFloat, {reader.position() - 4, 4});
    } else if (field->form == LineIdForm::kText && type == WireType::kBytes) {
      cell = CellOf(CellKind::kText, reader.bytes());
    } else if (field->form == LineIdForm::kInt &&
               type == (field->is_fixed64 ? WireType::kFixed64 : WireType::kVarint)) {
      const uint64_t number = reader.number();
      cell.bits = field->is_int32 ? static_cast<uint64_t>(int64_t{static_cast<int32_t>(number)}) : number;
      if (field->number == 87) cell.bits = number != 0;  // is_draw, a bool
      cell.kind = CellKind::kNumber;
    }
  }
  return reader.ok() || Refuse("LineId is malformed");
}

}  // namespace monolith
