// One optimizer step for the distinct ids of a batch, with the bits of table/group_apply.cc: the part that rules do.
// device/segment_rules.h launches these kernels, and those of device/kernels/around_learning.h before and after them.
//
// Each rule has its own kernels, which go over all tables. Lanes share the segments of elementwise rules, four
// weights at a time where a row's memory allows it; what all weights of a segment share changes in a launch of its own,
// when all lanes have read it. A thread alone runs a rule of the segment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/kernels/index.h"
#include "device/kernels/learn_rules.h"
#include "device/kernels/segment_view.h"
#include "device/kernels/table_view.h"
#include "device/kernels/thread.h"

namespace monolith::device {

// A segment of a row that learns.
struct LearningSegment {
  const SegmentView& view;
  uint32_t table;
  int64_t key;
  bool is_new;        // its row is
  float* weights;     // `view.dim` of them
  std::byte* state;   // on a boundary of 4 bytes
  uint64_t gradient;  // place of the first float of its gradient
};

struct LearnInput {
  DistinctIds ids;
  Tables tables;
  ValueLayout layout;  // of the gradients
  SegmentList segments;
  const uint32_t* rows;  // [ids.count]; kNoRow: the id is ignored
  NewRanks ranks;        // which ids are new
  const float* gradients;
  const float* adjusted;  // those of the segments that have other ones; null: no segment has
  const float* rates;     // of all segments of the group
  int64_t step;
  const uint32_t* refused;  // not 0: nothing changes

  // Calls visit(segment) for the listed segments of the row of a distinct id.
  template <typename Visit>
  void ForEachSegment(uint64_t item, Visit&& visit) const {
    if (item >= ids.count || *refused != 0) return;
    const auto place = static_cast<uint32_t>(item);
    const uint32_t row = rows[place], table = ids.TableAt(place);
    if (row == kNoRow || !segments.HasAny(table)) return;
    float* const payload = tables.views[table].PayloadAt(row);
    const bool is_new = ranks.IsNew(place);
    const uint64_t offset = layout.OffsetAt(place);
    segments.ForEach(table, [&](const SegmentView& view) {
      visit(LearningSegment{view, table, ids.keys[place], is_new, payload + view.first_dim,
                            reinterpret_cast<std::byte*>(payload) + view.state_offset, offset + view.first_dim});
    });
  }

  const float* GradientOf(const LearningSegment& segment) const {
    return (segment.view.is_adjusted ? adjusted : gradients) + segment.gradient;
  }
  // Random values are not a rule's affair, nor are the weights that the worker read.
  UpdateContext ContextOf(const LearningSegment& segment) const { return {rates[segment.view.rate], step, 0, nullptr}; }
};

template <typename Rule>
inline Rule RuleOf(const LearningSegment& segment) {
  static_assert(sizeof(Rule) <= kRuleBytes && alignof(Rule) <= 8);
  return *reinterpret_cast<const Rule*>(segment.view.rule);
}

// Where the state of a segment that all its weights share begins.
template <typename Rule>
inline std::byte* ScalarsOf(const LearningSegment& segment) {
  return segment.state + uint64_t{Rule::kMembers} * segment.view.dim * sizeof(float);
}

// One weight. `members` has one more than the rule, so that it is never empty.
template <int kWidth, typename Rule, typename Numbers>
inline void LearnWeight(const Rule& rule, const Numbers& numbers, float gradient, int i, Pack<kWidth>& weights,
                        Pack<kWidth>* members) {
  static_assert(Rule::kMembers <= 3);
  float& weight = weights.at[i];
  if constexpr (Rule::kMembers == 0) rule.Learn(numbers, gradient, weight);
  if constexpr (Rule::kMembers == 1) rule.Learn(numbers, gradient, weight, members[0].at[i]);
  if constexpr (Rule::kMembers == 2) rule.Learn(numbers, gradient, weight, members[0].at[i], members[1].at[i]);
  if constexpr (Rule::kMembers == 3) {
    rule.Learn(numbers, gradient, weight, members[0].at[i], members[1].at[i], members[2].at[i]);
  }
}

// For elementwise rules.
template <typename Rule>
struct LearnRows {
  LearnInput input;
  uint32_t lane_bits;

  void operator()() const {
    const Lane lane = LaneOf(lane_bits);
    input.ForEachSegment(lane.item, [&](const LearningSegment& segment) {
      const float* const gradient = input.GradientOf(segment);
      if (HasPacks(segment, gradient)) {
        Learn<4>(segment, gradient, lane.number);
      } else {
        Learn<1>(segment, gradient, lane.number);
      }
    });
  }

 private:
  static bool HasPacks(const LearningSegment& segment, const float* gradient) {
    auto places = reinterpret_cast<uintptr_t>(segment.weights) | reinterpret_cast<uintptr_t>(gradient);
    if constexpr (Rule::kMembers != 0) places |= reinterpret_cast<uintptr_t>(segment.state);
    return segment.view.dim % 4 == 0 && places % 16 == 0;
  }

  template <int kWidth>
  void Learn(const LearningSegment& segment, const float* gradient, uint32_t first_pack) const {
    const UpdateContext context = input.ContextOf(segment);
    const Rule rule = RuleOf<Rule>(segment);
    const bool learns = !Rule::kDividesByRate || context.learning_rate != 0.0f;
    if (!learns && !segment.is_new) return;
    const auto numbers = segment.is_new ? BeginNew(rule, context) : rule.Begin(context, ScalarsOf<Rule>(segment));
    float* const weights = segment.weights;
    const uint32_t dim = segment.view.dim;
    for (uint32_t at = kWidth * first_pack; at < dim; at += kWidth << lane_bits) {
      // Everything is read before the first of it is used: latencies overlap.
      Pack<kWidth> weight = LoadPack<kWidth>(weights + at), members[Rule::kMembers + 1];
      const Pack<kWidth> given = LoadPack<kWidth>(gradient + at);
      MONOLITH_UNROLL
      for (int m = 0; m < Rule::kMembers; ++m) {
        members[m] = segment.is_new ? FirstMember<kWidth>(rule, m) : LoadPack<kWidth>(MemberOf(segment, m) + at);
      }
      MONOLITH_UNROLL
      for (int i = 0; i < kWidth; ++i) {
        if (learns) LearnWeight<kWidth>(rule, numbers, given.at[i], i, weight, members);
      }
      StorePack(weight, weights + at);
      MONOLITH_UNROLL
      for (int m = 0; m < Rule::kMembers; ++m) StorePack(members[m], MemberOf(segment, m) + at);
    }
  }

  // The scalars of a new row are not in its memory yet (FinishRows).
  static auto BeginNew(const Rule& rule, const UpdateContext& context) {
    alignas(8) std::byte scalars[Rule::kScalarBytes + 1];
    rule.InitScalars(scalars);
    return rule.Begin(context, scalars);
  }
  static float* MemberOf(const LearningSegment& segment, int member) {
    return reinterpret_cast<float*>(segment.state) + static_cast<uint32_t>(member) * segment.view.dim;
  }
  template <int kWidth>
  static Pack<kWidth> FirstMember(const Rule& rule, int member) {
    Pack<kWidth> pack;
    for (int i = 0; i < kWidth; ++i) pack.at[i] = rule.InitialMember(member);
    return pack;
  }
};

// After LearnRows, for rules with state that all weights of a segment share. A thread for each id.
template <typename Rule>
struct FinishRows {
  LearnInput input;

  void operator()() const {
    input.ForEachSegment(ThreadNumber(), [&](const LearningSegment& segment) {
      const UpdateContext context = input.ContextOf(segment);
      const Rule rule = RuleOf<Rule>(segment);
      if (segment.is_new) rule.InitScalars(ScalarsOf<Rule>(segment));
      if (!Rule::kDividesByRate || context.learning_rate != 0.0f) rule.End(context, ScalarsOf<Rule>(segment));
    });
  }
};

// For rules of the segment. A thread for each id.
template <typename Rule>
struct LearnSegments {
  LearnInput input;

  void operator()() const {
    input.ForEachSegment(ThreadNumber(), [&](const LearningSegment& segment) {
      const Rule rule = RuleOf<Rule>(segment);
      const auto dim = static_cast<int>(segment.view.dim);
      if (segment.is_new) rule.InitState(segment.state, dim);
      rule.Learn(input.ContextOf(segment), segment.weights, segment.state, input.GradientOf(segment), dim);
    });
  }
};

}  // namespace monolith::device
