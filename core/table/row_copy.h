// Copies, zeroes and sums of row-sized runs of floats: short, of any length, in the hottest loops of the core. Pure
// functions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace monolith {

template <int kCount>
inline void CopyPiece(float* __restrict to, const float* __restrict from) {
  std::memcpy(to, from, sizeof(float) * kCount);
}

// In pieces of known size, which become registers: a call to memcpy costs more than copying a typical row.
inline void CopyFloats(float* __restrict to, const float* __restrict from, int count) {
  for (; count >= 16; count -= 16, to += 16, from += 16) CopyPiece<16>(to, from);
  if ((count & 8) != 0) CopyPiece<8>(to, from), to += 8, from += 8;
  if ((count & 4) != 0) CopyPiece<4>(to, from), to += 4, from += 4;
  if ((count & 2) != 0) CopyPiece<2>(to, from), to += 2, from += 2;
  if ((count & 1) != 0) *to = *from;
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

// True iff no element is NaN or infinite: those have all bits of the exponent set, and adding one carries into the
// sign. In integers, whose sum compilers may reorder and therefore vectorise.
inline bool AllFinite(const float* values, size_t count) {
  constexpr uint32_t kExponent = 0x7f800000, kLowestOfIt = 0x00800000, kSign = 0x80000000;
  uint32_t carries = 0;
  for (size_t i = 0; i < count; ++i) carries |= (std::bit_cast<uint32_t>(values[i]) & kExponent) + kLowestOfIt;
  return (carries & kSign) == 0;
}

}  // namespace monolith
