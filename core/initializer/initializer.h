// Initial weights of a new row. Immutable, shared by all threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/params.h"
#include "initializer/initializer_rule.h"

namespace monolith {

class Initializer {
 public:
  virtual ~Initializer() = default;
  // Fills `dim` floats; the result is a function of `seed` alone, which differs by table, id and segment.
  virtual void Fill(uint64_t seed, float* weights, int dim) const = 0;
  // The rule by which it fills segments of this dim.
  virtual InitializerRule rule(int dim) const = 0;
};

// Kinds: zeros ones constant random_uniform random_normal truncated_normal glorot_uniform.
// Throws kInvalidArgument for an unknown kind or a bad parameter.
std::unique_ptr<Initializer> MakeInitializer(const std::string& kind, const Params& params);

}  // namespace monolith
