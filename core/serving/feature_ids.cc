#include "serving/feature_ids.h"

#include <algorithm>

#include "base/error.h"
#include "data/cell_values.h"

namespace monolith {
namespace {

[[noreturn]] void Refuse(const InputFeature& feature, const std::string& what) {
  throw Error(Code::kInvalidArgument, "feature '" + feature.name + "': " + what);
}

// Whether all rows share one list of a sample.
bool AreOne(const SourceCells& cells, int64_t rows) {
  for (int64_t row = 1; row < rows; ++row) {
    if (!IsSame(cells[row], cells[0])) return false;
  }
  return rows > 0;
}

}  // namespace

void FeatureIds::Resize(int64_t rows) {
  rows_ = rows;
  splits_.resize(static_cast<size_t>(rows) + 1);
  splits_[0] = 0;
}

void FeatureIds::TakeCells(const InputFeature& feature, const SourceCells& cells, int64_t num_examples) {
  Resize(AreOne(cells, num_examples) ? 1 : num_examples);
  for (int64_t row = 0; row < rows_; ++row) {
    splits_[static_cast<size_t>(row) + 1] = splits_[static_cast<size_t>(row)] + CountValues(cells[row]);
  }
  keys_.resize(static_cast<size_t>(count()));
  for (int64_t row = 0; row < rows_; ++row) {
    DecodeInts(cells[row], -1, keys_.data() + splits_[static_cast<size_t>(row)]);
  }
  Settle(feature);
}

void FeatureIds::TakeColumn(const InputFeature& feature, const IdColumn& column) {
  Resize(column.rows);
  for (int64_t row = 0; row <= rows_; ++row) {
    // Read once, so that the checked value is used even if other threads of the caller write to it meanwhile.
    const int64_t split = column.per_row < 0 ? column.splits[row] : row * column.per_row;
    if (split < (row == 0 ? 0 : splits_[static_cast<size_t>(row) - 1]))
      Refuse(feature,
             "row_splits must rise from 0, row " + std::to_string(row) + " begins at " + std::to_string(split));
    splits_[static_cast<size_t>(row)] = split;
  }
  if (splits_[0] != 0 || count() != static_cast<int64_t>(column.ids.size())) {
    Refuse(feature, "row_splits must rise from 0 to the number of ids (" + std::to_string(column.ids.size()) +
                        "), got " + std::to_string(splits_[0]) + " to " + std::to_string(count()));
  }
  keys_.assign(column.ids.begin(), column.ids.end());
  Settle(feature);
}

void FeatureIds::Settle(const InputFeature& feature) {
  if (feature.padding.has_value() || feature.places > 0) Drop(feature);
  Check(feature);
  is_single_ = count() == rows_;
  for (int64_t row = 0; is_single_ && row < rows_; ++row) is_single_ = splits_[static_cast<size_t>(row)] == row;
  has_buckets_ = feature.bits.wide != 0;
  buckets_.resize(keys_.size());
  PackIds(keys_, feature.bits, keys_.data(), buckets_.data());
}

void FeatureIds::Drop(const InputFeature& feature) {
  const int64_t most = feature.places > 0 ? feature.places : count();
  int64_t kept = 0;
  int64_t begin = 0;
  for (int64_t row = 0; row < rows_; ++row) {
    const int64_t end = splits_[static_cast<size_t>(row) + 1];
    const int64_t first = kept;
    for (int64_t i = begin; i < end && kept - first < most; ++i) {
      const int64_t id = keys_[static_cast<size_t>(i)];
      if (feature.padding != id) keys_[static_cast<size_t>(kept++)] = id;
    }
    splits_[static_cast<size_t>(row) + 1] = kept;
    begin = end;
  }
  keys_.resize(static_cast<size_t>(kept));
}

void FeatureIds::Check(const InputFeature& feature) const {
  if (feature.bits.wide != 0 || feature.bits.forbidden == 0) return;
  uint64_t seen = 0;
  for (const int64_t id : keys_) seen |= static_cast<uint64_t>(id) ^ feature.bits.taken;
  if ((seen & feature.bits.forbidden) == 0) return;
  const auto bad = std::ranges::find_if(keys_, [&](int64_t id) {
    return ((static_cast<uint64_t>(id) ^ feature.bits.taken) & feature.bits.forbidden) != 0;
  });
  const auto row = std::ranges::upper_bound(splits_, bad - keys_.begin()) - splits_.begin() - 1;
  const std::string expected =
      feature.bits.taken != 0 || feature.bits.given == 0
          ? "ids must carry the slot's number " + std::to_string(feature.bits.given >> kNarrowBits) + " in bits 48..62"
          : "ids must be in [0, 2^48)";
  Refuse(feature, expected + ", got " + std::to_string(*bad) + " in example " + std::to_string(row));
}

}  // namespace monolith
