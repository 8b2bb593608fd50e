#include "compressor/compressor.h"

#include <algorithm>

#include "compressor/fixed_r8.h"
#include "compressor/float_formats.h"
#include "compressor/one_bit.h"

namespace monolith {

void Compressor::Retrieve(const float* weights, float* values, int dim, int64_t /*step*/) const {
  std::copy_n(weights, dim, values);
}

void Compressor::Backward(const float* /*weights*/, const float* gradient, float* result, int dim,
                          int64_t /*step*/) const {
  std::copy_n(gradient, dim, result);
}

std::unique_ptr<Compressor> MakeCompressor(const std::string& kind, const Params& params) {
  if (kind == "fp32") return std::make_unique<Fp32Compressor>();
  if (kind == "fp16") return std::make_unique<Fp16Compressor>();
  if (kind == "bf16") return std::make_unique<Bf16Compressor>();
  if (kind == "fixed_r8") return std::make_unique<FixedR8Compressor>(params);
  if (kind == "one_bit") return std::make_unique<OneBitCompressor>(params);
  throw Error(Code::kInvalidArgument,
              "unknown compressor '" + kind + "': expected one of fp32, fp16, bf16, fixed_r8, one_bit");
}

}  // namespace monolith
