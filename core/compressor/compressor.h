// How the weights of a segment are stored in a serving row, and how that compression affects training. Immutable,
// shared by all threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/params.h"
#include "compressor/quantiser_rule.h"

namespace monolith {

class Compressor {
 public:
  virtual ~Compressor() = default;

  // Bytes of a compressed segment; they need no alignment.
  virtual int BytesFor(int dim) const = 0;
  virtual void Encode(const float* values, std::byte* bytes, int dim) const = 0;
  virtual void Decode(const std::byte* bytes, float* values, int dim) const = 0;

  // Whether training lookups pass through the compressor (the "retriever"); most compressors return the raw weights.
  // When true, Retrieve() is applied between the stored weights and the reader, and Backward() between the gradient and
  // the optimizer; stored weights keep full precision either way. `step` is the global step of the call; no argument
  // overlaps another.
  virtual bool quantises_training() const { return false; }
  virtual void Retrieve(const float* weights, float* values, int dim, int64_t step) const;
  // `gradient` is copied, never changed.
  virtual void Backward(const float* weights, const float* gradient, float* result, int dim, int64_t step) const;
  // The rule of these two.
  virtual QuantiserRule quantiser() const { return {}; }
};

// Kinds: fp32 fp16 bf16 fixed_r8 (r) one_bit (step_size, init_scale, max_scale, amplitude).
// Throws kInvalidArgument for an unknown kind or a bad parameter.
std::unique_ptr<Compressor> MakeCompressor(const std::string& kind, const Params& params);

}  // namespace monolith
