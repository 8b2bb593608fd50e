// The rule of any initializer, chosen at run time: what a GPU gets of an Initializer.
#pragma once

#include <cstdint>

#include "initializer/constant_rule.h"
#include "initializer/normal_rule.h"
#include "initializer/uniform_rule.h"

namespace monolith {

struct InitializerRule {
  enum class Kind : uint32_t { kConstant, kUniform, kNormal, kTruncatedNormal };

  InitializerRule() : InitializerRule(ConstantRule{0.0f}) {}
  explicit InitializerRule(const ConstantRule& rule) : kind(Kind::kConstant), constant(rule) {}
  explicit InitializerRule(const UniformRule& rule) : kind(Kind::kUniform), uniform(rule) {}
  explicit InitializerRule(const NormalRule& rule) : kind(Kind::kNormal), normal(rule) {}
  explicit InitializerRule(const TruncatedNormalRule& rule) : kind(Kind::kTruncatedNormal), truncated_normal(rule) {}

  // Weight i of a segment, as Initializer::Fill() writes it.
  float Weight(uint64_t seed, int i) const {
    switch (kind) {
      case Kind::kUniform: return uniform.Weight(seed, i);
      case Kind::kNormal: return normal.Weight(seed, i);
      case Kind::kTruncatedNormal: return truncated_normal.Weight(seed, i);
      default: return constant.Weight(seed, i);
    }
  }

  Kind kind;
  union {
    ConstantRule constant;
    UniformRule uniform;
    NormalRule normal;
    TruncatedNormalRule truncated_normal;
  };
};

}  // namespace monolith
