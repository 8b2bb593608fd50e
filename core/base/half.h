// Conversion between binary32 and the two 16-bit floats: binary16 ("half") and bfloat16.
//
// Pure functions; thread-safe. Exact and portable: the same bits on every machine that rounds to nearest even, without
// intrinsics or 16-bit language types. Branch-free, so that a loop over an array vectorises.
//
// NaN stays NaN: its sign and upper payload are kept and its quiet bit is set, as hardware does. Zeros keep their sign,
// and a value too small for the target becomes a zero (or, directed, the smallest subnormal).
#pragma once

#include <bit>
#include <cstdint>

namespace monolith {

namespace half_internal {

inline constexpr uint32_t kFloatMagnitude = 0x7fffffffu;
inline constexpr uint32_t kFloatInfinity = 0x7f800000u;
inline constexpr uint32_t kHalfInfinity = 0x7c00u;
inline constexpr uint32_t kHalfLargest = 0x7bffu;
inline constexpr uint32_t kHalfQuietBit = 0x0200u;
inline constexpr uint32_t kRebias = (127u - 15u) << 23;   // from the exponent bias of a half to that of a float
inline constexpr uint32_t kSmallestNormal = 0x38800000u;  // 2^-14 as float bits: below it halves are evenly spaced
inline constexpr uint32_t kBeyondHalf = 0x47800000u;      // 2^16 as float bits: at and above it no half is finite

// A branch-free choice. Written in bits because compilers turn `?:` around float arithmetic into control flow (the arm
// not taken might trap), which keeps the loop around it from vectorising.
inline constexpr uint32_t Select(bool condition, uint32_t yes, uint32_t no) {
  return no ^ ((yes ^ no) & (0u - static_cast<uint32_t>(condition)));
}

inline constexpr uint32_t NanToHalf(uint32_t magnitude) {
  return kHalfInfinity | kHalfQuietBit | ((magnitude >> 13) & 0x3ffu);
}

// The largest half magnitude that is not above `magnitude`; the largest finite one for finite input beyond the range.
// REQUIRES: magnitude is not that of a NaN.
inline constexpr uint32_t TruncateMagnitude(uint32_t magnitude) {
  const uint32_t normal = (magnitude - kRebias) >> 13;
  const float small = std::bit_cast<float>(Select(magnitude < kSmallestNormal, magnitude, 0u));
  const uint32_t subnormal = static_cast<uint32_t>(static_cast<int32_t>(small * 0x1p24f));
  const uint32_t large = Select(magnitude == kFloatInfinity, kHalfInfinity, kHalfLargest);
  const uint32_t finite = Select(magnitude < kSmallestNormal, subnormal, normal);
  return Select(magnitude >= kBeyondHalf, large, finite);
}

inline constexpr uint32_t WidenMagnitude(uint32_t half) {
  const uint32_t subnormal = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(half)) * 0x1p-24f);
  const uint32_t normal = (half << 13) + kRebias;
  const uint32_t special = kFloatInfinity | (half << 13) | Select(half > kHalfInfinity, kHalfQuietBit << 13, 0u);
  const uint32_t finite = Select(half < 0x400u, subnormal, normal);
  return Select(half >= kHalfInfinity, special, finite);
}

// `away_sign` is the sign bit (of a float) whose values are rounded away from zero; the others are cut towards zero.
inline constexpr uint16_t Directed(float value, uint32_t away_sign) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & kFloatMagnitude;
  const uint32_t sign = bits & ~kFloatMagnitude;
  const bool nan = magnitude > kFloatInfinity;
  const uint32_t cut = TruncateMagnitude(Select(nan, 0u, magnitude));
  const uint32_t inexact = static_cast<uint32_t>(WidenMagnitude(cut) != magnitude);
  // The next larger magnitude is the next integer, and after the largest finite half comes infinity.
  const uint32_t rounded = cut + (inexact & static_cast<uint32_t>(sign == away_sign));
  return static_cast<uint16_t>((sign >> 16) | Select(nan, NanToHalf(magnitude), rounded));
}

}  // namespace half_internal

// Returns the nearest half, ties to even. From 65520 on the result is infinite.
inline constexpr uint16_t FloatToHalf(float value) {
  using namespace half_internal;  // NOLINT(build/namespaces): constants of this header
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & kFloatMagnitude;
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - kRebias) >> 13;
  // Adding 0.5, whose last bit weighs 2^-24 like that of a subnormal half, makes the float unit do the rounding.
  const float small = std::bit_cast<float>(Select(magnitude < kSmallestNormal, magnitude, 0u));
  const uint32_t subnormal = std::bit_cast<uint32_t>(small + 0.5f) - 0x3f000000u;
  const uint32_t finite = Select(magnitude < kSmallestNormal, subnormal, normal);
  const uint32_t ranged = Select(magnitude >= kBeyondHalf, kHalfInfinity, finite);
  const uint32_t result = Select(magnitude > kFloatInfinity, NanToHalf(magnitude), ranged);
  return static_cast<uint16_t>(((bits >> 16) & 0x8000u) | result);
}

// Returns the largest half that is <= value. Below -65504: minus infinity.
inline constexpr uint16_t FloatToHalfTowardNegative(float value) { return half_internal::Directed(value, 0x80000000u); }

// Returns the smallest half that is >= value. Above 65504: infinity.
inline constexpr uint16_t FloatToHalfTowardPositive(float value) { return half_internal::Directed(value, 0u); }

// Exact.
inline constexpr float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  return std::bit_cast<float>(sign | half_internal::WidenMagnitude(half & 0x7fffu));
}

// Returns the nearest bfloat16, ties to even.
inline constexpr uint16_t FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const bool nan = (bits & half_internal::kFloatMagnitude) > half_internal::kFloatInfinity;
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return static_cast<uint16_t>(half_internal::Select(nan, (bits >> 16) | 0x40u, rounded >> 16));
}

// Exact.
inline constexpr float Bf16ToFloat(uint16_t bf16) {
  const uint32_t bits = static_cast<uint32_t>(bf16) << 16;
  const bool nan = (bits & half_internal::kFloatMagnitude) > half_internal::kFloatInfinity;
  return std::bit_cast<float>(bits | half_internal::Select(nan, 0x400000u, 0u));
}

}  // namespace monolith
