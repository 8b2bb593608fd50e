// Reads the rows of a feature's ids and pools them. Used by one thread.
//
// The rows of an example are summed, averaged, or the first n of them are concatenated; zeros if it has none. Sums
// follow the order of the ids, as in training (table/pooled_slots.h), and give the same bits.
#pragma once

#include <cstdint>
#include <vector>

#include "serving/feature_ids.h"
#include "table/group.h"

namespace monolith {

// Destination of the pooled row of each example.
struct PooledRows {
  float* first;
  int64_t stride;  // floats from one to the next
};

class FeaturePooler {
 public:
  explicit FeaturePooler(int64_t step) : step_(step) {}

  // Writes ids.rows() pooled rows. Returns the number of ids found.
  int64_t Pool(const Group& group, const InputFeature& feature, const FeatureIds& ids, PooledRows to);

 private:
  int64_t PlaceFirst(const Group& group, const InputFeature& feature, const FeatureIds& ids, PooledRows to) const;
  // Computes sums, which may be scaled.
  int64_t Reduce(const Group& group, const InputFeature& feature, const FeatureIds& ids, PooledRows to);

  const int64_t step_;
  std::vector<float> rows_;
};

}  // namespace monolith
