#include "serving/feature_pooling.h"

#include <algorithm>

#include "table/row_copy.h"

namespace monolith {
namespace {

constexpr int64_t kIdsPerBlock = 512;  // rows read before they are summed: they stay in the nearest caches

const uint16_t* From(const uint16_t* buckets, int64_t first) { return buckets == nullptr ? nullptr : buckets + first; }

}  // namespace

int64_t FeaturePooler::Pool(const Group& group, const InputFeature& feature, const FeatureIds& ids, PooledRows to) {
  if (feature.pooling == Pooling::kFirstN) return PlaceFirst(group, feature, ids, to);
  if (ids.is_single() && to.stride == feature.dim) {
    const std::span<const int64_t> keys(ids.keys(), static_cast<size_t>(ids.count()));
    return group.ReadKeys(feature.table, keys, ids.buckets(), to.first, step_);
  }
  return Reduce(group, feature, ids, to);
}

int64_t FeaturePooler::PlaceFirst(const Group& group, const InputFeature& feature, const FeatureIds& ids,
                                  PooledRows to) const {
  int64_t found = 0;
  for (int64_t row = 0; row < ids.rows(); ++row) {
    const int64_t first = ids.splits()[row], taken = ids.splits()[row + 1] - first;
    float* places = to.first + row * to.stride;
    const std::span<const int64_t> keys(ids.keys() + first, static_cast<size_t>(taken));
    if (taken > 0) found += group.ReadKeys(feature.table, keys, From(ids.buckets(), first), places, step_);
    std::fill_n(places + taken * feature.dim, (feature.places - taken) * feature.dim, 0.0f);
  }
  return found;
}

int64_t FeaturePooler::Reduce(const Group& group, const InputFeature& feature, const FeatureIds& ids, PooledRows to) {
  const int dim = feature.dim;
  rows_.resize(static_cast<size_t>(std::min(kIdsPerBlock, ids.count()) * dim));
  int64_t found = 0, read = 0, block = 0;  // ids [block, read) are in rows_
  for (int64_t row = 0; row < ids.rows(); ++row) {
    float* sum = to.first + row * to.stride;
    const int64_t begin = ids.splits()[row], end = ids.splits()[row + 1];
    if (begin == end) ZeroFloats(sum, dim);
    for (int64_t i = begin; i < end; ++i) {
      if (i == read) {
        block = read;
        read = std::min(block + kIdsPerBlock, ids.count());
        const std::span<const int64_t> keys(ids.keys() + block, static_cast<size_t>(read - block));
        found += group.ReadKeys(feature.table, keys, From(ids.buckets(), block), rows_.data(), step_);
      }
      const float* values = rows_.data() + (i - block) * dim;
      i == begin ? CopyFloats(sum, values, dim) : AddFloats(sum, values, dim);
    }
    if (IsScaled(feature.pooling) && end - begin > 1) ScaleFloats(sum, PooledScale(feature.pooling, end - begin), dim);
  }
  return found;
}

}  // namespace monolith
