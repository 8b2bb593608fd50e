// The ids of one feature in one request, as keys of rows. Belongs to one thread, and is refilled for each feature.
//
// Ids are given as cells of samples (data/batch_cells.h) or as a column of numbers. A list that all examples share is
// used once: then there is one row, and the code that pools it repeats the result.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/batch_cells.h"
#include "table/group.h"
#include "table/slot_ids.h"

namespace monolith {

// A column of ids: its table and its pooling.
struct InputFeature {
  std::string name;
  std::string column;  // of the samples; several features may read one
  int group;           // index of its group among those of the request
  int table;
  int dim;
  Pooling pooling;
  int64_t places;  // of kFirstN, else 0
  SlotBits bits;
  std::optional<int64_t> padding;  // a value that is no id
};

// Ids of every example of a column end to end; or those of one example, which stands for all.
struct IdColumn {
  std::span<const int64_t> ids;
  int64_t per_row;        // the same for every row; -1: given by splits
  const int64_t* splits;  // [rows + 1] then
  int64_t rows;           // examples, or 1
};

// Keys of the rows of a feature's ids, for training.
struct FeatureKeys {
  std::vector<int64_t> keys;
  std::vector<uint16_t> buckets;
  std::vector<int64_t> splits;  // one row, or one for each example
};

class FeatureIds {
 public:
  // Throws kInvalidArgument for an id that the feature does not accept.
  void TakeCells(const InputFeature& feature, const SourceCells& cells, int64_t num_examples);
  // Also throws it for splits that do not fit the ids.
  void TakeColumn(const InputFeature& feature, const IdColumn& column);

  int64_t rows() const { return rows_; }
  int64_t count() const { return splits_[static_cast<size_t>(rows_)]; }
  // Whether each row has one id.
  bool is_single() const { return is_single_; }
  const int64_t* splits() const { return splits_.data(); }
  const int64_t* keys() const { return keys_.data(); }
  // Returns the arrays, with the bucket of every key.
  FeatureKeys Take() { return {std::move(keys_), std::move(buckets_), std::move(splits_)}; }
  // Buckets of the keys; null if the keys determine them.
  const uint16_t* buckets() const { return has_buckets_ ? buckets_.data() : nullptr; }

 private:
  void Resize(int64_t rows);
  // Converts ids to keys, once ids and splits are filled.
  void Settle(const InputFeature& feature);
  // Drops padding, and the ids after the last position of a sequence.
  void Drop(const InputFeature& feature);
  void Check(const InputFeature& feature) const;

  int64_t rows_ = 0;
  bool is_single_ = false;
  bool has_buckets_ = false;
  std::vector<int64_t> splits_;
  std::vector<int64_t> keys_;
  std::vector<uint16_t> buckets_;
};

}  // namespace monolith
