// Compressors that store each weight as a float of some width. Training reads the raw weights.
// Immutable, shared by all threads.
#pragma once

#include <cstddef>

#include "compressor/compressor.h"

namespace monolith {

// 4 bytes a value, exact.
class Fp32Compressor final : public Compressor {
 public:
  int BytesFor(int dim) const override { return 4 * dim; }
  void Encode(const float* values, std::byte* bytes, int dim) const override;
  void Decode(const std::byte* bytes, float* values, int dim) const override;
};

// 2 bytes a value: IEEE binary16, nearest even; from 65520 on infinite.
class Fp16Compressor final : public Compressor {
 public:
  int BytesFor(int dim) const override { return 2 * dim; }
  void Encode(const float* values, std::byte* bytes, int dim) const override;
  void Decode(const std::byte* bytes, float* values, int dim) const override;
};

// 2 bytes a value: the upper half of a binary32, nearest even. The range of a float with 8 bits of precision.
class Bf16Compressor final : public Compressor {
 public:
  int BytesFor(int dim) const override { return 2 * dim; }
  void Encode(const float* values, std::byte* bytes, int dim) const override;
  void Decode(const std::byte* bytes, float* values, int dim) const override;
};

}  // namespace monolith
