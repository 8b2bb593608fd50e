#include "data/cell_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "data/packed_list.h"
#include "format/proto_wire.h"

namespace monolith {
namespace {

constexpr int kSlotShiftV1 = 54;
constexpr int kSlotShiftV2 = 48;
constexpr uint64_t kSignatureV2 = (uint64_t{1} << kSlotShiftV2) - 1;
// Infinities and NaN share the magnitude after that of the largest finite double.
constexpr uint64_t kNoMagnitude = 1024;

uint64_t FromV1(uint64_t id) { return (id & kSignatureV2) | ((id >> kSlotShiftV1) << kSlotShiftV2); }

uint64_t InSlot(uint64_t id, int64_t slot) {
  return slot < 0 ? id : (id & kSignatureV2) | (static_cast<uint64_t>(slot) << kSlotShiftV2);
}

void DecodeIds(const char* from, size_t size, bool is_v1, int64_t slot, int64_t* to) {
  if (!is_v1 && slot < 0) {
    if (size > 0) std::memcpy(to, from, size);
    return;
  }
  for (const char* end = from + size; from != end; from += 8, ++to) {
    uint64_t id;
    std::memcpy(&id, from, 8);
    if (is_v1) id = FromV1(id);
    *to = static_cast<int64_t>(InSlot(id, slot));
  }
}

uint64_t Magnitude(float value) {
  const double size = std::fabs(static_cast<double>(value)) + 1.0;
  return std::isfinite(size) ? static_cast<uint64_t>(std::ilogb(size)) : kNoMagnitude;
}

bool IsIdLists(const Cell& cell) { return cell.kind == CellKind::kFidV1Lists || cell.kind == CellKind::kFidV2Lists; }

// Calls visit(bytes) for each inner list; each was converted to one packed field when the cell was read.
template <typename Visit>
void ForEachList(const Cell& cell, const Visit& visit) {
  WireReader reader(cell.view());
  while (reader.Next()) visit(reader.bytes());
}

}  // namespace

int64_t CountValues(const Cell& cell) {
  switch (cell.kind) {
    case CellKind::kFidV1:
    case CellKind::kFidV2:
    case CellKind::kDouble: return cell.size / 8;
    case CellKind::kFloat: return cell.size / 4;
    case CellKind::kInt64:
    case CellKind::kInt32: return CountVarints(cell.view());
    default: break;
  }
  int64_t count = 0;
  if (IsIdLists(cell))
    ForEachList(cell, [&](std::string_view list) { count += static_cast<int64_t>(list.size() / 8); });
  return count;
}

int64_t CountLists(const Cell& cell) {
  int64_t count = 0;
  if (IsIdLists(cell)) ForEachList(cell, [&](std::string_view) { ++count; });
  return count;
}

void DecodeInts(const Cell& cell, int64_t slot, int64_t* to) {
  const char* at = cell.data;
  if (cell.kind == CellKind::kFidV1 || cell.kind == CellKind::kFidV2) {
    DecodeIds(at, cell.size, cell.kind == CellKind::kFidV1, slot, to);
  } else if (cell.kind == CellKind::kInt64) {
    for (const char* end = at + cell.size; at != end;) *to++ = static_cast<int64_t>(InSlot(TakeVarint(&at), slot));
  } else if (cell.kind == CellKind::kInt32) {
    for (const char* end = at + cell.size; at != end;) *to++ = static_cast<int32_t>(TakeVarint(&at));
  } else if (cell.kind == CellKind::kFloat) {
    for (const char* end = at + cell.size; at != end; at += 4) {
      float value;
      std::memcpy(&value, at, 4);
      *to++ = static_cast<int64_t>(InSlot(Magnitude(value), slot));
    }
  } else if (IsIdLists(cell)) {
    ForEachList(cell, [&](std::string_view list) {
      DecodeIds(list.data(), list.size(), cell.kind == CellKind::kFidV1Lists, slot, to);
      to += list.size() / 8;
    });
  }
}

void DecodeListLengths(const Cell& cell, int64_t* to) {
  if (IsIdLists(cell)) ForEachList(cell, [&](std::string_view list) { *to++ = static_cast<int64_t>(list.size() / 8); });
}

int64_t DecodeFloats(const Cell& cell, int64_t most, float* to) {
  const int64_t count = std::min(most, CountValues(cell));
  const char* at = cell.data;
  if (cell.kind == CellKind::kFloat) {
    if (count > 0) std::memcpy(to, at, static_cast<size_t>(count) * 4);
  } else if (cell.kind == CellKind::kDouble) {
    for (int64_t i = 0; i < count; ++i, at += 8) {
      double value;
      std::memcpy(&value, at, 8);
      to[i] = static_cast<float>(value);
    }
  } else if (cell.kind == CellKind::kInt64) {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(static_cast<int64_t>(TakeVarint(&at)));
  }
  return count;
}

int64_t DecodeFirstInts(const Cell& cell, int64_t most, int64_t* to) {
  if (cell.kind == CellKind::kNumber) {
    *to = static_cast<int64_t>(cell.bits);
    return 1;
  }
  if (cell.kind != CellKind::kInt64) return 0;
  const int64_t count = std::min(most, CountValues(cell));
  const char* at = cell.data;
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<int64_t>(TakeVarint(&at));
  return count;
}

std::string_view FirstBytes(const Cell& cell) {
  if (cell.kind == CellKind::kText) return cell.view();
  if (cell.kind != CellKind::kBytes) return {};
  WireReader reader(cell.view());
  while (reader.Next()) {
    if (reader.tag() == TagOf(1, WireType::kBytes)) return reader.bytes();
  }
  return {};
}

}  // namespace monolith
