// Copies, zeroes and sums of row-sized runs of floats: short, of any length, in the hottest loops of the core. Pure functions.
#pragma once

#include <cstddef>
#include <cstring>

namespace monolith {

// Whole 16-byte pieces inline: a call to memcpy costs more than the copy of a usual row.
inline void CopyFloats(float* __restrict to, const float* __restrict from, int count) {
  int i = 0;
  for (; i + 4 <= count; i += 4) std::memcpy(to + i, from + i, 16);
  for (; i < count; ++i) to[i] = from[i];
}

inline void ZeroFloats(float* to, int count) { std::memset(to, 0, sizeof(float) * count); }

inline void AddFloats(float* __restrict sum, const float* __restrict values, int count) {
  for (int i = 0; i < count; ++i) sum[i] += values[i];
}

inline void AddScaledFloats(float* __restrict sum, const float* __restrict values, float scale, int count) {
  for (int i = 0; i < count; ++i) sum[i] += values[i] * scale;
}

inline void ScaleFloats(float* values, float scale, int count) {
  for (int i = 0; i < count; ++i) values[i] *= scale;
}

// True iff no element is NaN or infinite: times zero, those give NaN and all others zero.
inline bool AllFinite(const float* values, size_t count) {
  float sums[16] = {};
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (int lane = 0; lane < 16; ++lane) sums[lane] += values[i + lane] * 0.0f;
  }
  for (; i < count; ++i) sums[0] += values[i] * 0.0f;
  float sum = 0.0f;
  for (const float each : sums) sum += each;
  return sum == 0.0f;
}

}  // namespace monolith
