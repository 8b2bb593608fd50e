// Row optimizers made of rules (row_rule.h): one class for each form. Their arithmetic is compiled for every
// instruction set of the core.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "base/instruction_set.h"
#include "optimizer/row_math.h"
#include "optimizer/row_optimizer.h"
#include "optimizer/row_rule.h"

namespace monolith {

template <typename Rule>
class ElementwiseOptimizer final : public RowOptimizer {
  static_assert(std::is_trivially_copyable_v<Rule> && std::is_standard_layout_v<Rule>);

 public:
  ElementwiseOptimizer(int dim, const Rule& rule) : RowOptimizer(dim), rule_(rule) {}

  int StateBytes() const override { return MemberBytes() + Rule::kScalarBytes; }

  void InitState(std::byte* state) const override {
    for (int member = 0; member < Rule::kMembers; ++member) {
      std::fill_n(Floats(state) + member * dim(), dim(), rule_.InitialMember(member));
    }
    rule_.InitScalars(state + MemberBytes());
  }

  void Update(const UpdateContext& context, float* weights, std::byte* state, const float* gradient) const override {
    if (dim() == 1) {  // nothing to vectorise, so the call by WithInstructions would be a loss
      LearnSegment(1, context, weights, state, gradient);
    } else {
      WithInstructions([=, this, &context] { LearnSegment(dim(), context, weights, state, gradient); });
    }
  }

  RuleView rule() const override { return {RuleType<Rule>(), &rule_, sizeof(rule_)}; }

 private:
  void LearnSegment(int dim, const UpdateContext& context, float* weights, std::byte* state,
                    const float* gradient) const {
    if (Rule::kDividesByRate && context.learning_rate == 0.0f) return;
    std::byte* scalars = state + Rule::kMembers * dim * kFloatBytes;
    [&]<int... kMember>(std::integer_sequence<int, kMember...>) {
      LearnAll<kMember...>(rule_, rule_.Begin(context, scalars), dim, gradient, weights,
                           Floats(state) + kMember * dim...);
    }(std::make_integer_sequence<int, Rule::kMembers>());
    rule_.End(context, scalars);
  }

  // `members` has a pointer for each of kMember. The rule gets copies, not references into the row: compilers vectorise
  // without a check for overlaps only what this function itself reads and writes by its restricted pointers.
  template <int... kMember, typename Numbers, typename... Member>
  static void LearnAll(const Rule rule, const Numbers numbers, int dim, const float* __restrict gradient,
                       float* __restrict weights, Member* __restrict... members) {
    for (int i = 0; i < dim; ++i) {
      float weight = weights[i];
      float values[sizeof...(members) + 1] = {members[i]...};  // an array has at least one element
      rule.Learn(numbers, gradient[i], weight, values[kMember]...);
      weights[i] = weight;
      ((members[i] = values[kMember]), ...);
    }
  }

  int MemberBytes() const { return Rule::kMembers * dim() * kFloatBytes; }

  Rule rule_;
};

template <typename Rule>
class SegmentOptimizer final : public RowOptimizer {
  static_assert(std::is_trivially_copyable_v<Rule> && std::is_standard_layout_v<Rule>);

 public:
  SegmentOptimizer(int dim, const Rule& rule) : RowOptimizer(dim), rule_(rule) {}

  int StateBytes() const override { return rule_.StateBytes(dim()); }
  void InitState(std::byte* state) const override { rule_.InitState(state, dim()); }
  void Update(const UpdateContext& context, float* weights, std::byte* state, const float* gradient) const override {
    WithInstructions([=, this, &context] { rule_.Learn(context, weights, state, gradient, dim()); });
  }
  RuleView rule() const override { return {RuleType<Rule>(), &rule_, sizeof(rule_)}; }

 private:
  Rule rule_;
};

template <typename Rule>
std::unique_ptr<RowOptimizer> MakeElementwise(int dim, const Rule& rule) {
  return std::make_unique<ElementwiseOptimizer<Rule>>(dim, rule);
}

template <typename Rule>
std::unique_ptr<RowOptimizer> MakeOfSegment(int dim, const Rule& rule) {
  return std::make_unique<SegmentOptimizer<Rule>>(dim, rule);
}

}  // namespace monolith
