// The value of one feature in one sample: a view of the bytes that hold its values, not yet decoded. Values; a cell is
// valid as long as the records and the arena it was read with.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace monolith {

// Numbers are packed one after another; lists of lists and byte strings are stored as fields of number 1.
enum class CellKind : uint32_t {
  kAbsent = 0,
  kFidV1,
  kFidV2,
  kFloat,
  kDouble,
  kInt64,  // varints
  kInt32,  // varints, of which the low 32 bits are used
  kBytes,
  kFidV1Lists,
  kFidV2Lists,
  kFloatLists,
  kDoubleLists,
  kInt64Lists,
  kBytesLists,
  kNumber,  // one integer, in `bits`
  kText,    // one byte string
};

// Returns "float_list" and the like, the form in which messages name a kind.
const char* NameOf(CellKind kind);

// Sets of kinds.
using CellKinds = uint32_t;
inline constexpr CellKinds SetOf(CellKind kind) { return CellKinds{1} << static_cast<uint32_t>(kind); }

struct Cell {
  union {
    const char* data = nullptr;
    uint64_t bits;
  };
  uint32_t size = 0;
  CellKind kind = CellKind::kAbsent;

  std::string_view view() const { return {data, size}; }
};

inline Cell CellOf(CellKind kind, std::string_view bytes) {
  Cell cell;
  cell.data = bytes.data();
  cell.size = static_cast<uint32_t>(bytes.size());
  cell.kind = kind;
  return cell;
}

// Whether two cells are views of the same bytes; equal bytes at different addresses do not count.
inline bool IsSame(const Cell& a, const Cell& b) { return a.bits == b.bits && a.size == b.size && a.kind == b.kind; }

// Memory of cells whose bytes are not contiguous in a record. Only grows; belongs to one thread.
class Arena {
 public:
  std::string_view Keep(std::string bytes) {
    std::string& kept = kept_.emplace_back(std::move(bytes));
    owners_[kept.data()] = &kept;
    return kept;
  }

  // Marks bytes as shared by several cells: extending one of them makes a copy.
  void Share(std::string_view bytes) { owners_.erase(bytes.data()); }

  // Returns `bytes` followed by `more`. Bytes that the arena owns are extended in place, so that a list of n pieces is
  // built in linear time.
  std::string_view Extend(std::string_view bytes, std::string_view more) {
    const auto owner = owners_.find(bytes.data());
    if (owner == owners_.end() || owner->second->size() != bytes.size()) {
      std::string joined;
      joined.reserve(2 * (bytes.size() + more.size()));
      return Keep(std::move(joined.append(bytes).append(more)));
    }
    std::string& kept = *owner->second;
    owners_.erase(owner);
    kept.append(more);
    owners_[kept.data()] = &kept;
    return kept;
  }

 private:
  std::deque<std::string> kept_;
  std::unordered_map<const char*, std::string*> owners_;
};

}  // namespace monolith
