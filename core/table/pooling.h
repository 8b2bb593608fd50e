// How the rows of an example's ids become its output.
#pragma once

#include <cmath>
#include <cstdint>

namespace monolith {

enum class Pooling { kSum = 0, kMean = 1, kFirstN = 2, kSqrtN = 3 };

// What the sum of `count` rows is multiplied with; a mean of none has no scale.
inline float PooledScale(Pooling pooling, int64_t count) {
  if (pooling == Pooling::kMean) return 1.0f / static_cast<float>(count);
  if (pooling == Pooling::kSqrtN) return static_cast<float>(1.0 / std::sqrt(static_cast<double>(count)));
  return 1.0f;
}

inline bool IsScaled(Pooling pooling) { return pooling == Pooling::kMean || pooling == Pooling::kSqrtN; }

}  // namespace monolith
