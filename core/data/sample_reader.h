// Reads the cells of a schema from the wire format of a sample, without decoding values or copying them.
//
// One reader per thread: it caches the order of the features of the last sample, because the next one usually has the
// same. The caller owns the schema and the arena, which outlive the cells.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/cell.h"
#include "data/schema.h"

namespace monolith {

// The cells of one row: those of each source are contiguous, `stride` cells from those of the next.
struct RowCells {
  Cell* first;
  size_t stride;

  Cell& operator[](int source) const { return first[static_cast<size_t>(source) * stride]; }
};

class SampleReader {
 public:
  // At most `most_joined` bytes may be copied into the arena for the rows of one record, when a shared list is appended
  // to the list of a row: the only case in which more is stored than the record has.
  SampleReader(const Schema& schema, Arena* arena, int64_t most_joined)
      : schema_(schema), arena_(arena), most_joined_(most_joined) {}

  // Each fills the cells of a row, or returns false with problem() set when the bytes are no such message or a feature
  // has another type than its column accepts. REQUIRES: the cells are absent.
  bool ReadExample(std::string_view record, RowCells row);
  bool ReadInstance(std::string_view record, RowCells row);
  bool ReadTfExample(std::string_view record, RowCells row);
  // Fills `rows` rows, of which `row` is the first. REQUIRES: rows is the BatchSize() of the record.
  bool ReadExampleBatch(std::string_view record, RowCells row, int64_t rows);

  // Returns the number of rows of an ExampleBatch; -1 when the bytes are no message or the number is negative.
  static int64_t BatchSize(std::string_view record);

  const std::string& problem() const { return problem_; }

 private:
  struct Known {
    std::string name;
    int source;
  };

  bool Refuse(std::string problem);
  bool RefuseFeature(int source, const char* what);
  int Find(std::string_view name);
  bool Store(int source, const Cell& cell, Cell* to);
  bool ReadFeature(std::string_view feature, Cell* cell);
  bool ReadFeatureField(uint32_t number, CellKind kind, std::string_view bytes, uint32_t* last, Cell* cell);
  bool ReadNamedFeature(std::string_view message, RowCells row);
  bool ReadInstanceFeature(std::string_view message, RowCells row);
  bool SplitBySlot(const Cell& fids, RowCells row);
  bool ReadTfEntry(std::string_view message, RowCells row);
  bool ReadTfFeature(std::string_view feature, Cell* cell);
  bool ReadFeatureList(std::string_view message, RowCells row, int64_t rows);
  bool StoreEntries(int source, Cell* cells, int64_t rows);
  bool StoreShared(int source, Cell* cells, int64_t rows);
  bool ReadLineIds(RowCells row, int64_t rows);
  bool ReadLineId(std::string_view message, RowCells row);
  // Reads the LineId of a row: from the reserved feature if it exists, else from the typed field.
  bool ReadLineIdOf(RowCells row, const Cell& typed);

  const Schema& schema_;
  Arena* arena_;
  int64_t most_joined_;
  int64_t joined_ = 0;
  std::vector<Known> order_;
  size_t next_ = 0;
  std::vector<std::string_view> features_;
  std::string problem_;
};

}  // namespace monolith
