#include "compressor/float_formats.h"

#include <cstdint>
#include <cstring>

#include "base/half.h"

namespace monolith {

namespace {

// Compressed bytes have no alignment, so 16-bit values are stored with memcpy, which compilers turn into plain stores.
template <uint16_t (*kNarrow)(float)>
void Narrow(const float* values, std::byte* bytes, int dim) {
  for (int i = 0; i < dim; ++i) {
    const uint16_t narrow = kNarrow(values[i]);
    std::memcpy(bytes + 2 * static_cast<ptrdiff_t>(i), &narrow, 2);
  }
}

template <float (*kWiden)(uint16_t)>
void Widen(const std::byte* bytes, float* values, int dim) {
  for (int i = 0; i < dim; ++i) {
    uint16_t narrow;
    std::memcpy(&narrow, bytes + 2 * static_cast<ptrdiff_t>(i), 2);
    values[i] = kWiden(narrow);
  }
}

}  // namespace

void Fp32Compressor::Encode(const float* values, std::byte* bytes, int dim) const {
  std::memcpy(bytes, values, sizeof(float) * static_cast<size_t>(dim));
}

void Fp32Compressor::Decode(const std::byte* bytes, float* values, int dim) const {
  std::memcpy(values, bytes, sizeof(float) * static_cast<size_t>(dim));
}

void Fp16Compressor::Encode(const float* values, std::byte* bytes, int dim) const {
  Narrow<FloatToHalf>(values, bytes, dim);
}

void Fp16Compressor::Decode(const std::byte* bytes, float* values, int dim) const {
  Widen<HalfToFloat>(bytes, values, dim);
}

void Bf16Compressor::Encode(const float* values, std::byte* bytes, int dim) const {
  Narrow<FloatToBf16>(values, bytes, dim);
}

void Bf16Compressor::Decode(const std::byte* bytes, float* values, int dim) const {
  Widen<Bf16ToFloat>(bytes, values, dim);
}

}  // namespace monolith
