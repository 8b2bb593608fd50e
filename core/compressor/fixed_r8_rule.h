// 8-bit fixed point in [-128, 127] steps, one value at a time (fixed_r8.h has the formula). Branch-free, so that a loop
// over an array vectorises. Pure functions; thread-safe.
#pragma once

#include <bit>
#include <cstdint>

namespace monolith {

struct FixedR8Rule {
  float step;

  // The clamp precedes the conversion: a float outside int32 has no defined integer value. Sign and NaN are handled in
  // bits, because compilers turn `?:` around float arithmetic into control flow.
  int32_t Quantise(float value) const {
    constexpr uint32_t kSignBit = 0x80000000u;
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const float away = std::bit_cast<float>(std::bit_cast<uint32_t>(step / 2) | (bits & kSignBit));
    const float steps = (value + away) / step;
    const float below = steps > -128.0f ? steps : -128.0f;
    const float clamped = below < 127.0f ? below : 127.0f;
    const uint32_t number = 0u - static_cast<uint32_t>((bits & ~kSignBit) <= 0x7f800000u);
    return static_cast<int32_t>(std::bit_cast<float>(std::bit_cast<uint32_t>(clamped) & number));
  }

  int8_t Encode(float value) const { return static_cast<int8_t>(Quantise(value)); }
  float Decode(int32_t quantised) const { return static_cast<float>(quantised) * step; }
  // What training reads of a weight.
  float Retrieve(float weight) const { return Decode(Quantise(weight)); }
};

}  // namespace monolith
