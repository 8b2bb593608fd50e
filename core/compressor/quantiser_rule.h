// How training reads and learns the weights of a segment through its compressor, chosen at run time: what a GPU gets of
// a Compressor.
#pragma once

#include <cstdint>

#include "compressor/fixed_r8_rule.h"
#include "compressor/one_bit_rule.h"

namespace monolith {

struct QuantiserRule {
  enum class Kind : uint32_t { kNone, kFixedR8, kOneBit };

  QuantiserRule() : kind(Kind::kNone), fixed_r8{} {}
  explicit QuantiserRule(const FixedR8Rule& rule) : kind(Kind::kFixedR8), fixed_r8(rule) {}
  explicit QuantiserRule(const OneBitRule& rule) : kind(Kind::kOneBit), one_bit(rule) {}

  // Whether Compressor::Backward() changes gradients.
  bool changes_gradients() const { return kind == Kind::kOneBit; }

  Kind kind;
  union {
    FixedR8Rule fixed_r8;
    OneBitRule one_bit;
  };
};

}  // namespace monolith
