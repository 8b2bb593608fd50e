// The same weight everywhere.
#pragma once

#include <cstdint>

namespace monolith {

struct ConstantRule {
  float value;

  float Weight(uint64_t /*seed*/, int /*i*/) const { return value; }
};

}  // namespace monolith
