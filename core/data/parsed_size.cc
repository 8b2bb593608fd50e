#include "data/parsed_size.h"

#include <string>

#include "data/cell_values.h"

namespace monolith {
namespace {

constexpr int64_t kInt = sizeof(int64_t);
constexpr int64_t kFloat = sizeof(float);

bool IsRaggedInts(const Column& column) {
  const ColumnKind kind = column.spec.kind;
  return kind == ColumnKind::kIds || kind == ColumnKind::kInts || kind == ColumnKind::kAnyIds ||
         (kind == ColumnKind::kLineId && column.line_field->form == LineIdForm::kInts);
}

bool IsText(const Column& column) {
  return column.spec.kind == ColumnKind::kFirstBytes ||
         (column.spec.kind == ColumnKind::kLineId && column.line_field->form == LineIdForm::kText);
}

int64_t RowBytes(const Column& column) {
  if (column.spec.kind == ColumnKind::kNestedIds) return 2 * kInt;
  if (IsRaggedInts(column) || column.spec.kind == ColumnKind::kFloats) return kInt;
  if (IsText(column)) return sizeof(std::string);
  return column.spec.width * kInt;
}

int64_t ValueBytes(const Column& column, const Cell& cell) {
  if (column.spec.kind == ColumnKind::kNestedIds) return kInt * (CountValues(cell) + CountLists(cell));
  if (IsRaggedInts(column)) return kInt * CountValues(cell);
  if (column.spec.kind == ColumnKind::kFloats) return kFloat * CountValues(cell);
  return IsText(column) ? static_cast<int64_t>(FirstBytes(cell).size()) : 0;
}

}  // namespace

int64_t BytesPerRow(const Schema& schema) {
  int64_t bytes = static_cast<int64_t>(schema.sources().size() * sizeof(Cell));
  for (const Column& column : schema.columns()) bytes += RowBytes(column);
  return bytes;
}

int64_t ParsedBytes(const Schema& schema, RowCells row, int64_t rows, int64_t most) {
  int64_t bytes = BytesPerRow(schema) * rows;
  for (const Column& column : schema.columns()) {
    if (column.source < 0 || rows == 0) continue;
    const Cell* cells = &row[column.source];
    int64_t of_row = 0;
    for (int64_t i = 0; i < rows && bytes <= most; ++i) {
      // The cells of a shared list are one cell repeated: its values are counted once.
      if (i == 0 || !IsSame(cells[i], cells[i - 1])) {
        of_row = ValueBytes(column, cells[i]);
      } else if (column.spec.kind == ColumnKind::kAnyIds) {
        of_row = 0;
      }
      bytes += of_row;
    }
  }
  return bytes;
}

}  // namespace monolith
