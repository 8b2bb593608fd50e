// What happens to weights and gradients before and after the rules of device/kernels/learn.h: the first weights of new
// rows, gradients through quantisers and delay compensation, stochastic rounding. Lanes share a row.
#pragma once

#include <cstdint>

#include "device/kernels/learn.h"
#include "device/kernels/segment_view.h"
#include "device/kernels/thread.h"
#include "optimizer/delay_compensation_rule.h"
#include "optimizer/stochastic_rounding_rule.h"

namespace monolith::device {

// Writes the weights of new rows, and zeros after the payload. Of all segments.
struct InitRows {
  LearnInput input;
  RowSeeds seeds;
  uint32_t lane_bits;

  void operator()() const {
    const Lane lane = LaneOf(lane_bits);
    if (lane.item >= input.ids.count || !input.ranks.IsNew(static_cast<uint32_t>(lane.item))) return;
    const uint32_t lanes = 1u << lane_bits;
    input.ForEachSegment(lane.item, [&](const LearningSegment& segment) {
      const SegmentView& view = segment.view;
      const uint64_t seed = FirstWeightsSeedOf(seeds.Of(segment.table, segment.key), view.number);
      for (uint32_t i = lane.number; i < view.dim; i += lanes) {
        segment.weights[i] = view.initializer.Weight(seed, static_cast<int>(i));
      }
      if (view.number != 0) return;
      float* const payload = segment.weights;  // those of the first segment
      const uint32_t stride = input.tables.views[segment.table].stride;
      for (uint32_t i = seeds.tables[segment.table].payload_floats + lane.number; i < stride; i += lanes) {
        payload[i] = 0.0f;
      }
    });
  }
};

// Writes the gradients that the rules of some segments get in place of the given ones.
struct AdjustGradients {
  LearnInput input;
  const float* latest;  // weights that the worker read, laid out as gradients are; null: not known
  uint32_t lane_bits;
  float* adjusted;  // may be the gradients themselves

  void operator()() const {
    const Lane lane = LaneOf(lane_bits);
    input.ForEachSegment(lane.item, [&](const LearningSegment& segment) {
      const SegmentView& view = segment.view;
      const bool is_tangent = view.quantiser.kind == QuantiserRule::Kind::kOneBit;
      const OneBitTangent tangent = is_tangent ? view.quantiser.one_bit.At(input.step) : OneBitTangent{};
      const bool compensates = latest != nullptr && view.delay_compensation_lambda != 0.0f;
      for (uint32_t i = lane.number; i < view.dim; i += 1u << lane_bits) {
        const uint64_t at = segment.gradient + i;
        const float weight = segment.weights[i];
        float gradient = input.gradients[at];
        if (is_tangent) gradient = tangent.Backward(weight, gradient);
        if (compensates) {
          gradient = CompensatedGradient(gradient, weight, latest[at], view.delay_compensation_lambda);
        }
        adjusted[at] = gradient;
      }
    });
  }
};

// Rounds updated weights to binary16 at random.
struct RoundWeights {
  LearnInput input;
  RowSeeds seeds;
  uint32_t lane_bits;

  void operator()() const {
    const Lane lane = LaneOf(lane_bits);
    input.ForEachSegment(lane.item, [&](const LearningSegment& segment) {
      const uint64_t row_seed = seeds.Of(segment.table, segment.key);
      const CounterRandom random(UpdateSeedOf(row_seed, input.step) + segment.view.first_dim);
      for (uint32_t i = lane.number; i < segment.view.dim; i += 1u << lane_bits) {
        segment.weights[i] = RoundToHalf(segment.weights[i], random.Uniform(i));
      }
    });
  }
};

}  // namespace monolith::device
