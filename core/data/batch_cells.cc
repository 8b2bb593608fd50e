#include "data/batch_cells.h"

#include <algorithm>

#include "base/error.h"
#include "base/thread_pool.h"
#include "data/parsed_size.h"
#include "data/sample_reader.h"

namespace monolith {
namespace {

constexpr int64_t kMostRowsPerRecord = int64_t{1} << 20;
constexpr size_t kLargestRecord = size_t{1} << 31;
constexpr size_t kRecordsPerTask = 32;

std::string TooManyBytes(int64_t rows, int64_t most) {
  return "its " + std::to_string(rows) + " rows would become more than " + std::to_string(most) +
         " bytes of the batch; raise max_parsed_bytes if the record is meant";
}

// Returns what is wrong with the number of rows of an ExampleBatch, -1 for a record without one; empty when it is
// valid.
std::string ProblemOfRows(const Schema& schema, int64_t rows, int64_t most_bytes) {
  if (rows < 0) return "not an ExampleBatch: malformed, or a negative batch_size";
  if (rows > kMostRowsPerRecord)
    return "batch_size " + std::to_string(rows) + ", the limit is " + std::to_string(kMostRowsPerRecord);
  return rows * BytesPerRow(schema) > most_bytes ? TooManyBytes(rows, most_bytes) : "";
}

void PlaceRows(const Schema& schema, std::span<const std::string_view> records, int64_t most_bytes, int64_t most_cells,
               BatchCells* cells) {
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
  if (num_cells > most_cells) {
    throw Error(Code::kResourceExhausted, "a batch of " + std::to_string(cells->num_rows()) +
                                              " rows is too large to parse in one call; give fewer records");
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

void ReadCells(const Schema& schema, std::span<const std::string_view> records, int64_t most_bytes, BatchCells* cells) {
  const bool is_batch = schema.format() == SampleFormat::kExampleBatch;
  const size_t per_task = is_batch ? 1 : kRecordsPerTask;
  const size_t num_tasks = (records.size() + per_task - 1) / per_task;
  cells->arenas.resize(num_tasks);
  ParallelFor(static_cast<int>(num_tasks), [&](int task) {
    const size_t begin = static_cast<size_t>(task) * per_task;
    SampleReader reader(schema, &cells->arenas[static_cast<size_t>(task)], most_bytes);
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

}  // namespace

BatchCells ReadBatchCells(const Schema& schema, std::span<const std::string_view> records, int64_t most_bytes,
                          int64_t most_cells) {
  BatchCells cells;
  PlaceRows(schema, records, most_bytes, most_cells, &cells);
  ReadCells(schema, records, most_bytes, &cells);
  return cells;
}

}  // namespace monolith
