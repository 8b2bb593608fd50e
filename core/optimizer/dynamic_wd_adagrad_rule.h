// Adagrad whose decay depends on how long a row has rested.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/elementary.h"
#include "optimizer/adagrad_rule.h"
#include "optimizer/row_math.h"
#include "optimizer/row_rule.h"

namespace monolith {

// With gap = steps since the row's last update, at least 1, and 1 for a new row:
//   decay * (1 - exp(-gap / temperature))       an inactive row decays more
//   decay * exp(-(gap - 1) / temperature)       flipped: an inactive row decays less, an active one in full
struct DynamicDecay {
  static constexpr int64_t kNeverUpdated = -1;

  float At(int64_t step, int64_t last_step) const {
    if (!dynamic || decay == 0.0f) return decay;
    const int64_t gap = last_step == kNeverUpdated ? 1 : std::max<int64_t>(step - last_step, 1);
    const double rest = static_cast<double>(flipped ? gap - 1 : gap) / temperature;
    const double fading = Exp(-rest);
    const double factor = flipped ? fading : 1.0 - fading;
    return static_cast<float>(static_cast<double>(decay) * factor);
  }

  float decay;
  bool dynamic;
  bool flipped;
  double temperature;
};

// State: norm[dim], int64 last_update_step.
template <bool kDecoupled>
struct DynamicWdAdagradRule : ElementwiseRule {
  static constexpr int kMembers = 1;
  static constexpr int kScalarBytes = static_cast<int>(sizeof(int64_t));

  float InitialMember(int) const { return initial; }
  void InitScalars(std::byte* last_step) const { StoreStep(last_step, DynamicDecay::kNeverUpdated); }
  AdagradStep Begin(const UpdateContext& context, const std::byte* last_step) const {
    return {context.learning_rate, decay.At(context.step, LoadStep(last_step))};
  }
  void Learn(const AdagradStep& step, float gradient, float& weight, float& norm) const {
    LearnAdagrad<kDecoupled>(step, gradient, weight, norm);
  }
  void End(const UpdateContext& context, std::byte* last_step) const { StoreStep(last_step, context.step); }

  float initial;
  DynamicDecay decay;
};

// State: norm[ceil(dim / run)], int64 last_update_step.
template <bool kDecoupled>
struct DynamicWdAdagradRunRule {
  int NormBytes(int dim) const { return AdagradAccumulators(dim, run) * kFloatBytes; }
  int StateBytes(int dim) const { return NormBytes(dim) + static_cast<int>(sizeof(int64_t)); }
  void InitState(std::byte* state, int dim) const {
    std::fill_n(Floats(state), AdagradAccumulators(dim, run), initial);
    StoreStep(state + NormBytes(dim), DynamicDecay::kNeverUpdated);
  }
  void Learn(const UpdateContext& context, float* weights, std::byte* state, const float* gradient, int dim) const {
    std::byte* last_step = state + NormBytes(dim);
    const AdagradStep step{context.learning_rate, decay.At(context.step, LoadStep(last_step))};
    LearnAdagradRuns<kDecoupled>(step, weights, Floats(state), gradient, dim, run);
    StoreStep(last_step, context.step);
  }

  float initial;
  int run;
  DynamicDecay decay;
};

}  // namespace monolith
