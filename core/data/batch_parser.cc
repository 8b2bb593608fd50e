#include "data/batch_parser.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/thread_pool.h"
#include "data/cell_values.h"
#include "data/parsed_size.h"
#include "data/sample_reader.h"

namespace monolith {
namespace {

constexpr int64_t kMostRowsPerRecord = int64_t{1} << 20;
constexpr int64_t kMostValues = int64_t{1} << 28;
constexpr size_t kLargestRecord = size_t{1} << 31;
constexpr size_t kRecordsPerTask = 32;

// The cells of all records: for each source one after another, a cell for each row.
struct Cells {
  std::vector<Cell> cells;
  std::vector<int64_t> first_row;     // of each record, and the end
  std::vector<std::string> problems;  // of each record, empty when it is good
  std::vector<int64_t> good_rows;     // of good records only; empty when all are good
  bool all_good = true;

  int64_t num_rows() const { return first_row.back(); }
  int64_t num_good() const { return all_good ? num_rows() : static_cast<int64_t>(good_rows.size()); }
};

// Walks over the good rows of one source.
class SourceCells {
 public:
  SourceCells(const Cells& cells, int source)
      : cells_(source < 0 ? nullptr : cells.cells.data() + source * cells.num_rows()),
        rows_(cells.all_good ? nullptr : cells.good_rows.data()) {}

  const Cell& operator[](int64_t row) const {
    static const Cell kAbsent{};
    return cells_ == nullptr ? kAbsent : cells_[rows_ == nullptr ? row : rows_[row]];
  }

 private:
  const Cell* cells_;
  const int64_t* rows_;
};

std::string TooManyBytes(int64_t rows, int64_t most) {
  return "its " + std::to_string(rows) + " rows would become more than " + std::to_string(most) +
         " bytes of the batch; raise max_parsed_bytes if the record is meant";
}

// What is wrong with the number of rows of an ExampleBatch, -1 for one that has none; empty when nothing is.
std::string ProblemOfRows(const Schema& schema, int64_t rows, int64_t most_bytes) {
  if (rows < 0) return "not an ExampleBatch: malformed, or a negative batch_size";
  if (rows > kMostRowsPerRecord)
    return "batch_size " + std::to_string(rows) + ", the limit is " + std::to_string(kMostRowsPerRecord);
  return rows * BytesPerRow(schema) > most_bytes ? TooManyBytes(rows, most_bytes) : "";
}

void PlaceRows(const Schema& schema, std::span<const std::string_view> records, int64_t most_bytes, Cells* cells) {
  cells->first_row.assign(records.size() + 1, 0);
  cells->problems.resize(records.size());
  for (size_t i = 0; i < records.size(); ++i) {
    int64_t rows = 1;
    if (records[i].size() >= kLargestRecord) {
      cells->problems[i] = "a record of " + std::to_string(records[i].size()) + " bytes, expected less than 2 GiB";
    } else if (schema.format() == SampleFormat::kExampleBatch) {
      rows = SampleReader::BatchSize(records[i]);
      cells->problems[i] = ProblemOfRows(schema, rows, most_bytes);
      if (!cells->problems[i].empty()) rows = 0;
    }
    cells->first_row[i + 1] = cells->first_row[i] + rows;
  }
  const auto num_cells = cells->num_rows() * static_cast<int64_t>(schema.sources().size());
  if (num_cells > kMostValues) {
    throw Error(Code::kResourceExhausted, "a batch of " + std::to_string(cells->num_rows()) +
                                              " rows is too large to parse at once; give fewer records");
  }
  cells->cells.resize(static_cast<size_t>(num_cells));
}

bool ReadRecord(const Schema& schema, std::string_view record, RowCells row, int64_t rows, SampleReader* reader) {
  switch (schema.format()) {
    case SampleFormat::kExample: return reader->ReadExample(record, row);
    case SampleFormat::kInstance: return reader->ReadInstance(record, row);
    case SampleFormat::kTfExample: return reader->ReadTfExample(record, row);
    case SampleFormat::kExampleBatch: return reader->ReadExampleBatch(record, row, rows);
  }
  return false;
}

// Fills the cells; `arenas` keeps what they point to.
void ReadCells(const Schema& schema, std::span<const std::string_view> records, int64_t most_bytes, Cells* cells,
               std::vector<Arena>* arenas) {
  const bool is_batch = schema.format() == SampleFormat::kExampleBatch;
  const size_t per_task = is_batch ? 1 : kRecordsPerTask;
  const size_t num_tasks = (records.size() + per_task - 1) / per_task;
  arenas->resize(num_tasks);
  ParallelFor(static_cast<int>(num_tasks), [&](int task) {
    const size_t begin = static_cast<size_t>(task) * per_task;
    SampleReader reader(schema, &(*arenas)[static_cast<size_t>(task)], most_bytes);
    for (size_t i = begin; i < std::min(begin + per_task, records.size()); ++i) {
      if (!cells->problems[i].empty()) continue;
      const int64_t rows = cells->first_row[i + 1] - cells->first_row[i];
      const RowCells row{cells->cells.data() + cells->first_row[i], static_cast<size_t>(cells->num_rows())};
      if (!ReadRecord(schema, records[i], row, rows, &reader)) {
        cells->problems[i] = reader.problem();
      } else if (is_batch && ParsedBytes(schema, row, rows, most_bytes) > most_bytes) {
        cells->problems[i] = TooManyBytes(rows, most_bytes);
      }
    }
  });
}

void LeaveOutBad(bool skip_bad, Cells* cells, ParsedBatch* batch) {
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

// One array of the result: which column it holds, and where it lies.
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
    case ColumnKind::kInts: parts->ragged_ints.push_back({&column}); return;
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

// Counts the values of every row of every part, and places the parts one after another. Returns the number of values.
int64_t PlaceRagged(const Cells& cells, int64_t rows, std::vector<Part>* parts, std::vector<int64_t>* splits) {
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

void FillRagged(const Cells& cells, const Parts& parts, ParsedBatch* batch) {
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

void FillFloats(const Cells& cells, const Part& part, int64_t rows, float* to) {
  const Column& column = *part.column;
  const int64_t width = column.spec.width;
  const SourceCells typed(cells, column.source);
  const SourceCells named(cells, column.named_source);
  const ColumnKind kind = column.spec.kind;
  // sample_rate, the only real number of a LineId, is 1 where it is not said.
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

void FillDense(const Cells& cells, const Parts& parts, ParsedBatch* batch) {
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

void FillTexts(const Cells& cells, const Parts& parts, ParsedBatch* batch) {
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
  ParsedBatch batch;
  Cells cells;
  std::vector<Arena> arenas;
  PlaceRows(schema, records, options.max_parsed_bytes, &cells);
  ReadCells(schema, records, options.max_parsed_bytes, &cells, &arenas);
  LeaveOutBad(options.skip_bad, &cells, &batch);
  batch.rows = cells.num_good();
  Parts parts;
  for (const Column& column : schema.columns()) Sort(column, &parts);
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
