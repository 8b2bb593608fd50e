#include "data/batch_parser.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/thread_pool.h"
#include "data/batch_cells.h"
#include "data/cell_values.h"

namespace monolith {
namespace {

constexpr int64_t kMostValues = int64_t{1} << 28;

void LeaveOutBad(bool skip_bad, BatchCells* cells, ParsedBatch* batch) {
  for (size_t i = 0; i < cells->problems.size(); ++i) {
    if (cells->problems[i].empty()) continue;
    if (!skip_bad) throw Error(Code::kDataLoss, "record " + std::to_string(i) + ": " + cells->problems[i]);
    batch->bad_records.push_back(static_cast<int64_t>(i));
    if (batch->problems.size() < kMostProblems) batch->problems.push_back(cells->problems[i]);
  }
  cells->all_good = batch->bad_records.empty();
  if (cells->all_good) return;
  for (size_t i = 0; i < cells->problems.size(); ++i) {
    if (!cells->problems[i].empty()) continue;
    for (int64_t row = cells->first_row[i]; row < cells->first_row[i + 1]; ++row) cells->good_rows.push_back(row);
  }
}

// One array of the result: its column, and its position.
struct Part {
  const Column* column;
  bool is_lengths = false;  // of the lists of a column of lists of lists
  int64_t begin = 0;        // first value in the array of its type
  size_t splits = 0;        // first split, of ragged parts
};

struct Parts {
  std::vector<Part> ragged_ints, ragged_floats, dense_floats, dense_ints, texts;
};

void Sort(const Column& column, Parts* parts) {
  switch (column.spec.kind) {
    case ColumnKind::kNestedIds:
      parts->ragged_ints.push_back({&column});
      parts->ragged_ints.push_back({&column, true});
      return;
    case ColumnKind::kIds:
    case ColumnKind::kInts:
    case ColumnKind::kAnyIds: parts->ragged_ints.push_back({&column}); return;
    case ColumnKind::kFloats: parts->ragged_floats.push_back({&column}); return;
    case ColumnKind::kDenseFloats:
    case ColumnKind::kLabel:
    case ColumnKind::kWeight: parts->dense_floats.push_back({&column}); return;
    case ColumnKind::kDenseInts: parts->dense_ints.push_back({&column}); return;
    case ColumnKind::kFirstBytes: parts->texts.push_back({&column}); return;
    case ColumnKind::kLineId: break;
  }
  switch (column.line_field->form) {
    case LineIdForm::kInt: parts->dense_ints.push_back({&column}); return;
    case LineIdForm::kFloat: parts->dense_floats.push_back({&column}); return;
    case LineIdForm::kInts: parts->ragged_ints.push_back({&column}); return;
    case LineIdForm::kText: parts->texts.push_back({&column}); return;
  }
}

void CheckTotal(int64_t values) {
  if (values > kMostValues || values < 0) {
    throw Error(Code::kResourceExhausted, "a batch of " + std::to_string(values) + " values, the limit is " +
                                              std::to_string(kMostValues) + "; give fewer records");
  }
}

// Counts the values of every row of every part, and lays the parts out one after another. Returns the number of values.
int64_t PlaceRagged(const BatchCells& cells, int64_t rows, std::vector<Part>* parts, std::vector<int64_t>* splits) {
  splits->assign(parts->size() * static_cast<size_t>(rows + 1), 0);
  ParallelFor(static_cast<int>(parts->size()), [&](int i) {
    Part& part = (*parts)[static_cast<size_t>(i)];
    part.splits = static_cast<size_t>(i) * static_cast<size_t>(rows + 1);
    int64_t* to = splits->data() + part.splits;
    const SourceCells source(cells, part.column->source);
    for (int64_t row = 0; row < rows; ++row) {
      to[row + 1] = to[row] + (part.is_lengths ? CountLists(source[row]) : CountValues(source[row]));
    }
  });
  int64_t total = 0;
  for (Part& part : *parts) {
    part.begin = total;
    total += (*splits)[part.splits + static_cast<size_t>(rows)];
    CheckTotal(total);
  }
  return total;
}

void FillRagged(const BatchCells& cells, const Parts& parts, ParsedBatch* batch) {
  ParallelFor(static_cast<int>(parts.ragged_ints.size() + parts.ragged_floats.size()), [&](int i) {
    const auto index = static_cast<size_t>(i);
    const bool is_int = index < parts.ragged_ints.size();
    const Part& part = is_int ? parts.ragged_ints[index] : parts.ragged_floats[index - parts.ragged_ints.size()];
    const SourceCells source(cells, part.column->source);
    const int64_t* splits = (is_int ? batch->ragged_int_splits : batch->ragged_float_splits).data() + part.splits;
    for (int64_t row = 0; row < batch->rows; ++row) {
      const int64_t at = part.begin + splits[row];
      if (part.is_lengths) {
        DecodeListLengths(source[row], batch->ragged_ints.data() + at);
      } else if (is_int) {
        DecodeInts(source[row], part.column->spec.slot, batch->ragged_ints.data() + at);
      } else {
        DecodeFloats(source[row], splits[row + 1] - splits[row], batch->ragged_floats.data() + at);
      }
    }
  });
}

int64_t PlaceDense(int64_t rows, std::vector<Part>* parts) {
  int64_t total = 0;
  for (Part& part : *parts) {
    part.begin = total;
    total += rows * part.column->spec.width;
    CheckTotal(total);
  }
  return total;
}

void FillFloats(const BatchCells& cells, const Part& part, int64_t rows, float* to) {
  const Column& column = *part.column;
  const int64_t width = column.spec.width;
  const SourceCells typed(cells, column.source);
  const SourceCells named(cells, column.named_source);
  const ColumnKind kind = column.spec.kind;
  // sample_rate, the only real number of a LineId, is 1 if it is missing.
  const float fill = kind == ColumnKind::kLabel ? kInvalidLabel : kind == ColumnKind::kDenseFloats ? 0.0f : 1.0f;
  for (int64_t row = 0; row < rows; ++row, to += width) {
    int64_t filled = 0;
    if (kind == ColumnKind::kWeight) {
      filled = DecodeFloats(named[row], width, to);
      if (filled == 0) filled = DecodeFloats(typed[row], width, to);
      if (filled > 0 && !(*to > 0.0f)) filled = 0;
    } else {
      filled = DecodeFloats(typed[row], width, to);
      filled += DecodeFloats(named[row], width - filled, to + filled);
    }
    std::fill(to + filled, to + width, fill);
  }
}

void FillDense(const BatchCells& cells, const Parts& parts, ParsedBatch* batch) {
  ParallelFor(static_cast<int>(parts.dense_floats.size() + parts.dense_ints.size()), [&](int i) {
    const auto index = static_cast<size_t>(i);
    if (index < parts.dense_floats.size()) {
      const Part& part = parts.dense_floats[index];
      FillFloats(cells, part, batch->rows, batch->dense_floats.data() + part.begin);
      return;
    }
    const Part& part = parts.dense_ints[index - parts.dense_floats.size()];
    const SourceCells source(cells, part.column->source);
    const int64_t width = part.column->spec.width;
    int64_t* to = batch->dense_ints.data() + part.begin;
    for (int64_t row = 0; row < batch->rows; ++row, to += width) {
      std::fill(to + DecodeFirstInts(source[row], width, to), to + width, 0);
    }
  });
}

void FillTexts(const BatchCells& cells, const Parts& parts, ParsedBatch* batch) {
  for (const Part& part : parts.texts) {
    const SourceCells source(cells, part.column->source);
    std::vector<std::string>& texts = batch->texts.emplace_back();
    texts.reserve(static_cast<size_t>(batch->rows));
    int64_t total = 0;
    for (int64_t row = 0; row < batch->rows; ++row) {
      texts.emplace_back(FirstBytes(source[row]));
      CheckTotal(total += static_cast<int64_t>(texts.back().size()));
    }
  }
}

}  // namespace

ParsedBatch ParseBatch(const Schema& schema, std::span<const std::string_view> records, const ParseOptions& options) {
  ParsedBatch left_out;
  BatchCells cells = ReadBatchCells(schema, records, options.max_parsed_bytes);
  LeaveOutBad(options.skip_bad, &cells, &left_out);
  ParsedBatch batch = FillBatch(schema.columns(), cells);
  batch.bad_records = std::move(left_out.bad_records);
  batch.problems = std::move(left_out.problems);
  return batch;
}

ParsedBatch FillBatch(std::span<const Column> columns, const BatchCells& cells) {
  ParsedBatch batch;
  batch.rows = cells.num_good();
  Parts parts;
  for (const Column& column : columns) Sort(column, &parts);
  const int64_t ints = PlaceRagged(cells, batch.rows, &parts.ragged_ints, &batch.ragged_int_splits);
  batch.ragged_ints.resize(static_cast<size_t>(ints));
  const int64_t floats = PlaceRagged(cells, batch.rows, &parts.ragged_floats, &batch.ragged_float_splits);
  batch.ragged_floats.resize(static_cast<size_t>(floats));
  batch.dense_floats.resize(static_cast<size_t>(PlaceDense(batch.rows, &parts.dense_floats)));
  batch.dense_ints.resize(static_cast<size_t>(PlaceDense(batch.rows, &parts.dense_ints)));
  FillRagged(cells, parts, &batch);
  FillDense(cells, parts, &batch);
  FillTexts(cells, parts, &batch);
  return batch;
}

}  // namespace monolith
