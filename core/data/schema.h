// The columns of a batch, and the source of each in a sample. Built once, then read by any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/cell.h"

namespace monolith {

// Do not change the values: the Python side sends them.
enum class SampleFormat { kInstance = 1, kExampleBatch = 2, kExample = 3, kTfExample = 4 };

enum class ColumnKind {
  kIds = 0,          // ragged int64
  kInts = 1,         // ragged int64
  kFloats = 2,       // ragged float
  kNestedIds = 3,    // two ragged int64: the ids of each row, and the lengths of its lists
  kDenseFloats = 4,  // float [rows, width]
  kDenseInts = 5,    // int64 [rows, width]
  kFirstBytes = 6,   // one byte string for each row
  kLabel = 7,        // float [rows, width], kInvalidLabel where there is none
  kWeight = 8,       // float [rows], 1 where there is none or it is not positive
  kLineId = 9,       // a field of LineId, in the form of its type
  kAnyIds = 10,      // ids or integers, ragged int64; a shared list counts once (serving/feature_ids.h)
};

enum class LineIdForm { kInt, kFloat, kInts, kText };

struct LineIdField {
  const char* name;
  uint32_t number;
  LineIdForm form;
  bool is_fixed64 = false;
  bool is_int32 = false;
};

// Returns nullptr when LineId has no such field.
const LineIdField* FindLineIdField(std::string_view name);
// Names of all fields, for messages and for the Python side.
std::vector<std::string> LineIdFieldNames();

struct ColumnSpec {
  std::string name;
  ColumnKind kind = ColumnKind::kIds;
  int64_t width = 1;
  int64_t slot = -1;  // replaces the slot of the ids; -1 keeps them unchanged
};

// A field of a sample from which cells are read. Several columns may share one.
struct Source {
  std::string name;
  CellKinds accepted = 0;
};

struct Column {
  ColumnSpec spec;
  const LineIdField* line_field = nullptr;
  int source = -1;        // the typed field for label and weight
  int named_source = -1;  // the reserved feature that replaces the field, of label and weight
};

class Schema {
 public:
  // Throws kInvalidArgument for duplicate or unknown names, widths and slots out of range.
  Schema(SampleFormat format, const std::vector<ColumnSpec>& columns);

  SampleFormat format() const { return format_; }
  const std::vector<Column>& columns() const { return columns_; }
  const std::vector<Source>& sources() const { return sources_; }

  // Source of a named feature, -1 when no column uses it.
  int FindNamed(std::string_view name) const;
  // Source of a v1 slot of the flat ids of an Instance, -1 when no column uses it.
  int FindSlot(uint32_t slot) const { return slot_sources_[slot]; }
  // Sources of typed fields, -1 when no column uses them.
  int label() const { return label_; }
  int weight() const { return weight_; }
  // Whether some column is a field of LineId; sources of those fields by their number.
  bool wants_line_id() const { return !line_sources_.empty(); }
  const std::unordered_map<uint32_t, std::pair<int, const LineIdField*>>& line_sources() const { return line_sources_; }
  // Source of the reserved feature that holds a serialized LineId, -1 when no column uses one.
  int line_id_feature() const { return line_id_feature_; }

 private:
  int AddSource(std::string name, CellKinds accepted);
  int AddNamed(const std::string& name, CellKinds accepted);
  void AddColumn(const ColumnSpec& spec);
  void AddLineId(Column* column);

  SampleFormat format_;
  std::vector<Column> columns_;
  std::vector<Source> sources_;
  std::unordered_map<std::string, int> named_;
  std::unordered_map<uint32_t, std::pair<int, const LineIdField*>> line_sources_;
  std::array<int, 1024> slot_sources_;
  int label_ = -1;
  int weight_ = -1;
  int line_id_feature_ = -1;
};

}  // namespace monolith
