#include "compressor/fixed_r8.h"

#include <bit>
#include <cmath>
#include <limits>
#include <string>

namespace monolith {

namespace {

constexpr uint32_t kSignBit = 0x80000000u;

// The clamp precedes the conversion: a float outside int32 has no defined integer value. Sign and NaN are handled in
// bits, so that the loop around it is branch-free and vectorises.
inline int32_t Quantise(float value, float half, float step) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const float away = std::bit_cast<float>(std::bit_cast<uint32_t>(half) | (bits & kSignBit));
  const float steps = (value + away) / step;
  const float below = steps > -128.0f ? steps : -128.0f;
  const float clamped = below < 127.0f ? below : 127.0f;
  const uint32_t number = 0u - static_cast<uint32_t>((bits & ~kSignBit) <= 0x7f800000u);
  return static_cast<int32_t>(std::bit_cast<float>(std::bit_cast<uint32_t>(clamped) & number));
}

}  // namespace

FixedR8Compressor::FixedR8Compressor(const Params& params) : step_(params.GetFloat("r") / 128.0f) {
  if (!(step_ >= std::numeric_limits<float>::min()) || !std::isfinite(step_)) {
    throw Error(Code::kInvalidArgument,
                "compressor fixed_r8: r must be positive and finite, with r/128 a normal float, got " +
                    std::to_string(params.Get("r")));
  }
}

void FixedR8Compressor::Encode(const float* values, std::byte* bytes, int dim) const {
  const float step = step_;
  const float half = step / 2;
  int8_t* out = reinterpret_cast<int8_t*>(bytes);
  for (int i = 0; i < dim; ++i) out[i] = static_cast<int8_t>(Quantise(values[i], half, step));
}

void FixedR8Compressor::Decode(const std::byte* bytes, float* values, int dim) const {
  const float step = step_;
  const int8_t* in = reinterpret_cast<const int8_t*>(bytes);
  for (int i = 0; i < dim; ++i) values[i] = static_cast<float>(in[i]) * step;
}

void FixedR8Compressor::Retrieve(const float* weights, float* values, int dim, int64_t /*step*/) const {
  const float step = step_;
  const float half = step / 2;
  for (int i = 0; i < dim; ++i) values[i] = static_cast<float>(Quantise(weights[i], half, step)) * step;
}

}  // namespace monolith
