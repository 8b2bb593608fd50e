#include "data/packed_list.h"

#include <string>

namespace monolith {
namespace {

constexpr int kLongestVarint = 10;

// Returns the wire type of the elements of a kind when they are not packed.
WireType ElementType(CellKind kind) {
  switch (kind) {
    case CellKind::kFidV1:
    case CellKind::kFidV2:
    case CellKind::kDouble: return WireType::kFixed64;
    case CellKind::kFloat: return WireType::kFixed32;
    case CellKind::kInt64:
    case CellKind::kInt32: return WireType::kVarint;
    default: return WireType::kBytes;
  }
}

bool IsPacked(std::string_view bytes, WireType element) {
  switch (element) {
    case WireType::kFixed64: return bytes.size() % 8 == 0;
    case WireType::kFixed32: return bytes.size() % 4 == 0;
    default: return CountVarints(bytes) >= 0;
  }
}

std::string Encoded(const WireReader& field, WireType element) {
  std::string bytes;
  if (element == WireType::kVarint) {
    PutVarint(field.number(), &bytes);
  } else {
    const uint64_t number = field.number();
    bytes.assign(reinterpret_cast<const char*>(&number), element == WireType::kFixed64 ? 8 : 4);
  }
  return bytes;
}

void AppendBytes(std::string_view more, CellKind kind, Arena* arena, Cell* cell) {
  if (cell->kind == CellKind::kAbsent) {
    *cell = CellOf(kind, more);
  } else if (!more.empty()) {
    *cell = CellOf(kind, arena->Extend(cell->view(), more));
  }
}

}  // namespace

int64_t CountVarints(std::string_view bytes) {
  int64_t count = 0;
  int length = 0;
  for (const char byte : bytes) {
    ++length;
    if (static_cast<unsigned char>(byte) >= 0x80) continue;
    if (length > kLongestVarint) return -1;
    length = 0;
    ++count;
  }
  return length == 0 ? count : -1;
}

bool AppendField(const WireReader& field, CellKind kind, Arena* arena, Cell* cell) {
  const WireType element = ElementType(kind);
  const auto type = static_cast<WireType>(field.tag() & 7);
  if (type == WireType::kBytes) {
    if (!IsPacked(field.bytes(), element)) return false;
    AppendBytes(field.bytes(), kind, arena, cell);
  } else if (type == element) {
    const std::string bytes = Encoded(field, element);
    if (cell->kind == CellKind::kAbsent) *cell = CellOf(kind, arena->Keep({}));
    AppendBytes(bytes, kind, arena, cell);
  }
  return true;
}

bool ReadList(std::string_view message, CellKind kind, Arena* arena, Cell* cell) {
  *cell = CellOf(kind, {});
  if (ElementType(kind) == WireType::kBytes) {
    // Byte strings and lists of lists are read field by field when they are used; here they are only checked.
    WireReader reader(message);
    while (reader.Next()) {
    }
    *cell = CellOf(kind, message);
    return reader.ok();
  }
  WireReader reader(message);
  Cell list;
  while (reader.Next()) {
    if ((reader.tag() >> 3) == 1 && !AppendField(reader, kind, arena, &list)) return false;
  }
  if (list.kind != CellKind::kAbsent) *cell = list;
  return reader.ok();
}

bool ReadIdLists(std::string_view message, CellKind kind, Arena* arena, Cell* cell) {
  std::string lists;
  WireReader reader(message);
  while (reader.Next()) {
    if (reader.tag() != TagOf(1, WireType::kBytes)) continue;
    Cell list;
    if (!ReadList(reader.bytes(), CellKind::kFidV2, arena, &list)) return false;
    lists.push_back(static_cast<char>(reader.tag()));
    PutVarint(list.size, &lists);
    lists.append(list.view());
  }
  *cell = CellOf(kind, arena->Keep(std::move(lists)));
  return reader.ok();
}

void Append(const Cell& more, Arena* arena, Cell* cell) { AppendBytes(more.view(), more.kind, arena, cell); }

}  // namespace monolith
