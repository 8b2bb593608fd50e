// How the rows of an example's ids are pooled to its output.
#pragma once

#include <cmath>
#include <cstdint>

namespace monolith {

enum class Pooling { kSum = 0, kMean = 1, kFirstN = 2, kSqrtN = 3 };

// Returns the factor of the sum of `count` rows; a mean of no rows has none.
inline float PooledScale(Pooling pooling, int64_t count) {
  if (pooling == Pooling::kMean) return 1.0f / static_cast<float>(count);
  if (pooling == Pooling::kSqrtN) return static_cast<float>(1.0 / std::sqrt(static_cast<double>(count)));
  return 1.0f;
}

inline bool IsScaled(Pooling pooling) { return pooling == Pooling::kMean || pooling == Pooling::kSqrtN; }

}  // namespace monolith
