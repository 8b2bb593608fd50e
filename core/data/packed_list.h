// Lists of numbers inside messages: usually one packed field, but the wire format also allows several, and single
// elements between them. Pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "data/cell.h"
#include "format/proto_wire.h"

namespace monolith {

// Adds the element or elements of one field to a cell of that kind; false iff they are malformed. `field` has just been
// read and its number is right; a wire type that the kind does not have is skipped, as protocol buffers do.
bool AppendField(const WireReader& field, CellKind kind, Arena* arena, Cell* cell);

// Reads the field 1 of a list message as a cell; false iff the bytes are no such message.
bool ReadList(std::string_view message, CellKind kind, Arena* arena, Cell* cell);

// Reads lists of id lists as a cell in which every inner list is one packed field; false iff the bytes are no such
// message.
bool ReadIdLists(std::string_view message, CellKind kind, Arena* arena, Cell* cell);

// Joins the values of two cells of one kind.
void Append(const Cell& more, Arena* arena, Cell* cell);

// Returns the number of varints, -1 when the bytes are not varints one after another.
int64_t CountVarints(std::string_view bytes);

// Reads one varint that CountVarints has counted, and steps over it.
inline uint64_t TakeVarint(const char** at) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(*(*at)++);
    value |= static_cast<uint64_t>(byte & 0x7f) << (shift & 63);
    if (byte < 0x80) return value;
  }
}

}  // namespace monolith
