// Records of the four sample formats. Input: the format, then the record, which is parsed alone and in one batch with
// its first half.
#include <vector>

#include "data/batch_parser.h"
#include "input.h"

namespace monolith {
namespace {

std::vector<ColumnSpec> Columns(SampleFormat format) {
  if (format == SampleFormat::kTfExample) {
    return {{"user", ColumnKind::kIds, 1, 3},        {"plain", ColumnKind::kIds},
            {"price", ColumnKind::kFloats},          {"dense", ColumnKind::kDenseFloats, 3},
            {"counts", ColumnKind::kDenseInts, 2},   {"codes", ColumnKind::kInts},
            {"name", ColumnKind::kFirstBytes},       {"label", ColumnKind::kLabel, 2},
            {"instance_weight", ColumnKind::kWeight}};
  }
  return {{"user", ColumnKind::kIds},
          {"fc_slot_1", ColumnKind::kIds},
          {"lists", ColumnKind::kNestedIds},
          {"price", ColumnKind::kFloats},
          {"dense", ColumnKind::kDenseFloats, 3},
          {"counts", ColumnKind::kDenseInts, 2},
          {"codes", ColumnKind::kInts},
          {"name", ColumnKind::kFirstBytes},
          {"label", ColumnKind::kLabel, 2},
          {"instance_weight", ColumnKind::kWeight},
          {"uid", ColumnKind::kLineId},
          {"actions", ColumnKind::kLineId},
          {"sample_rate", ColumnKind::kLineId},
          {"cid", ColumnKind::kLineId},
          {"rank", ColumnKind::kLineId},
          {"is_draw", ColumnKind::kLineId}};
}

const Schema& SchemaOf(int number) {
  static const std::vector<Schema> schemas = [] {
    std::vector<Schema> made;
    for (const SampleFormat format :
         {SampleFormat::kInstance, SampleFormat::kExampleBatch, SampleFormat::kExample, SampleFormat::kTfExample})
      made.emplace_back(format, Columns(format));
    return made;
  }();
  return schemas[static_cast<size_t>(number)];
}

void CheckSplits(const std::vector<int64_t>& splits, size_t num_values, int64_t rows) {
  int64_t sum = 0;
  for (size_t i = 0; i < splits.size(); ++i) {
    const bool is_first = i % static_cast<size_t>(rows + 1) == 0;
    Expect(is_first ? splits[i] == 0 : splits[i] >= splits[i - 1]);
    if ((i + 1) % static_cast<size_t>(rows + 1) == 0) sum += splits[i];
  }
  Expect(sum == static_cast<int64_t>(num_values));
}

}  // namespace
}  // namespace monolith

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace monolith;
  Input input(data, size);
  const Schema& schema = SchemaOf(input.Byte() % 4);
  // Copies without spare capacity, so that the address sanitizer detects a read past the end.
  const std::vector<char> whole(input.rest().begin(), input.rest().end());
  const std::vector<char> half(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(whole.size() / 2));
  const std::vector<std::string_view> records{{whole.data(), whole.size()}, {half.data(), half.size()}};
  const ParsedBatch batch = ParseBatch(schema, records, {.skip_bad = true, .max_parsed_bytes = 1 << 22});
  Expect(batch.bad_records.size() <= 2 && batch.problems.size() == batch.bad_records.size());
  CheckSplits(batch.ragged_int_splits, batch.ragged_ints.size(), batch.rows);
  CheckSplits(batch.ragged_float_splits, batch.ragged_floats.size(), batch.rows);
  for (const auto& texts : batch.texts) Expect(texts.size() == static_cast<size_t>(batch.rows));
  return 0;
}
