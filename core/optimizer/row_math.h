// Arithmetic shared by the row optimizers, shaped so that the loops around it vectorise without fused multiply-add and
// give the same bits at every vector width. Pure functions; thread-safe.
#pragma once

#include <bit>
#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace monolith {

inline constexpr int kFloatBytes = static_cast<int>(sizeof(float));

// The root of an accumulator, raised to that of the smallest normal float, so that it can be a divisor: an accumulator
// of 0 (started at 0, or fed with squares that underflow) gives a finite step instead of 0/0. NaN stays NaN.
inline float AsDivisor(float root) { return root < 0x1p-63f ? 0x1p-63f : root; }
static_assert(0x1p-63f * 0x1p-63f == FLT_MIN);

// A branch-free choice. In bits, because compilers keep the arithmetic of an arm not taken from running (it might trap)
// and then do not vectorise the loop.
inline float Choose(bool condition, float yes, float no) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  const uint32_t otherwise = std::bit_cast<uint32_t>(no);
  return std::bit_cast<float>(otherwise ^ ((std::bit_cast<uint32_t>(yes) ^ otherwise) & mask));
}

// Sum of squares in double over eight lanes: no overflow for any floats, and in practice independent of the order.
inline double SumOfSquares(const float* __restrict values, int count) {
  constexpr int kLanes = 8;
  double lanes[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double value = static_cast<double>(values[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (int lane = 0; i < count; ++i, ++lane) {
    const double value = static_cast<double>(values[i]);
    lanes[lane] += value * value;
  }
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

inline float* Floats(std::byte* state) { return reinterpret_cast<float*>(state); }
inline const float* Floats(const std::byte* state) { return reinterpret_cast<const float*>(state); }

// An 8-byte member of the state, which is only 4-byte aligned.
inline int64_t LoadStep(const std::byte* bytes) {
  int64_t step;
  std::memcpy(&step, bytes, sizeof(step));
  return step;
}
inline void StoreStep(std::byte* bytes, int64_t step) { std::memcpy(bytes, &step, sizeof(step)); }

}  // namespace monolith
