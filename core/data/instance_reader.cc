// Reads samples whose ids are in one flat list, with the slot inside each id.
#include <cstring>

#include "data/packed_list.h"
#include "data/sample_reader.h"
#include "format/proto_wire.h"

namespace monolith {
namespace {

constexpr int kSlotShiftV1 = 54;

struct Member {
  uint32_t number;
  CellKind kind;
};

// In order of precedence: the first member that has values is used.
constexpr Member kMembers[] = {
    {2, CellKind::kFidV2},      {3, CellKind::kFloat},      {4, CellKind::kInt64},      {5, CellKind::kBytes},
    {6, CellKind::kFidV2Lists}, {7, CellKind::kFloatLists}, {8, CellKind::kInt64Lists}, {9, CellKind::kBytesLists},
};

// Writes fields of number 1, as in the lists of an Example.
void PutElement(std::string_view element, std::string* body) {
  body->push_back(static_cast<char>(TagOf(1, WireType::kBytes)));
  PutVarint(element.size(), body);
  body->append(element);
}

// Reads the member of that number as a cell; absent when the feature does not have it.
bool ReadMember(std::string_view feature, const Member& member, Arena* arena, Cell* cell) {
  WireReader reader(feature);
  std::string body;
  while (reader.Next()) {
    if ((reader.tag() >> 3) != member.number) continue;
    if (member.number <= 4) {
      if (!AppendField(reader, member.kind, arena, cell)) return false;
    } else if ((reader.tag() & 7) == static_cast<uint32_t>(WireType::kBytes)) {
      PutElement(reader.bytes(), &body);
    }
  }
  if (member.kind == CellKind::kFidV2Lists && !body.empty()) return ReadIdLists(body, member.kind, arena, cell);
  if (!body.empty()) *cell = CellOf(member.kind, arena->Keep(std::move(body)));
  return reader.ok();
}

}  // namespace

bool SampleReader::ReadInstanceFeature(std::string_view message, RowCells row) {
  WireReader reader(message);
  std::string_view name;
  uint32_t members = 0;
  while (reader.Next()) {
    const uint32_t number = reader.tag() >> 3;
    if (reader.tag() == TagOf(1, WireType::kBytes)) name = reader.bytes();
    if (number >= 2 && number <= 9) members |= 1u << number;
  }
  if (!reader.ok()) return Refuse("a Feature is malformed");
  const int source = Find(name);
  if (source < 0) return true;
  for (const Member& member : kMembers) {
    if ((members & (1u << member.number)) == 0) continue;
    Cell cell;
    if (!ReadMember(message, member, arena_, &cell)) return RefuseFeature(source, "is malformed");
    if (cell.kind != CellKind::kAbsent && cell.size > 0) return Store(source, cell, &row[source]);
  }
  return true;
}

bool SampleReader::SplitBySlot(const Cell& fids, RowCells row) {
  for (const char* at = fids.data; at != fids.data + fids.size; at += 8) {
    uint64_t fid;
    std::memcpy(&fid, at, 8);
    const int source = schema_.FindSlot(static_cast<uint32_t>(fid >> kSlotShiftV1));
    if (source >= 0 && !Store(source, CellOf(CellKind::kFidV1, {at, 8}), &row[source])) return false;
  }
  return true;
}

bool SampleReader::ReadInstance(std::string_view record, RowCells row) {
  WireReader reader(record);
  next_ = 0;
  Cell fids;
  Cell line_id;
  Cell values;
  while (reader.Next()) {
    const uint32_t number = reader.tag() >> 3;
    bool is_good = true;
    if (number == 1) is_good = AppendField(reader, CellKind::kFidV1, arena_, &fids);
    if (number == 2) is_good = AppendField(reader, CellKind::kFloat, arena_, &values);
    if (number == 3 && schema_.label() >= 0)
      is_good = AppendField(reader, CellKind::kFloat, arena_, &row[schema_.label()]);
    if (!is_good) return Refuse("a packed list of an Instance is malformed");
    if (reader.tag() == TagOf(4, WireType::kFixed32) && schema_.weight() >= 0)
      row[schema_.weight()] = CellOf(CellKind::kFloat, {reader.position() - 4, 4});
    if (reader.tag() == TagOf(5, WireType::kBytes)) Append(CellOf(CellKind::kText, reader.bytes()), arena_, &line_id);
    if (reader.tag() == TagOf(9, WireType::kBytes) && !ReadInstanceFeature(reader.bytes(), row)) return false;
  }
  if (!reader.ok()) return Refuse("not an Instance: its wire form is malformed");
  if (!SplitBySlot(fids, row)) return false;
  const int source = schema_.FindNamed("value");
  if (source >= 0 && values.kind != CellKind::kAbsent && !Store(source, values, &row[source])) return false;
  return ReadLineIdOf(row, line_id);
}

}  // namespace monolith
