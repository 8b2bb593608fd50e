#include <algorithm>
#include <cmath>
#include <cstdint>

#include "optimizer/adagrad_rule.h"
#include "optimizer/kernels.h"
#include "optimizer/vector_rule.h"

namespace monolith {
namespace {

constexpr int64_t kNeverUpdated = -1;

// State: norm[ceil(dim / run)], then int64 last_update_step.
//
// Dynamic decay, with gap = steps since the row's last update, at least 1, and 1 for a new row:
//   decay * (1 - exp(-gap / temperature))       an inactive row decays more
//   decay * exp(-(gap - 1) / temperature)       flipped: an inactive row decays less, an active one in full
class DynamicWdAdagrad final : public VectorRule<DynamicWdAdagrad> {
 public:
  DynamicWdAdagrad(int dim, const Params& params)
      : VectorRule(dim),
        initial_(params.GetFloat("initial_accumulator_value")),
        decay_(params.GetFloat("weight_decay_factor")),
        run_(CountParameter(params, "hessian_compression_times")),
        decoupled_(params.GetBool("decouple_weight_decay")),
        dynamic_(params.GetBool("enable_dynamic_wd")),
        flipped_(params.GetBool("flip_direction")),
        temperature_(params.Get("dynamic_wd_temperature")) {
    if (!(temperature_ > 0.0)) throw Error(Code::kInvalidArgument, "dynamic_wd_temperature must be > 0");
  }

  int StateBytes() const override { return NormBytes() + static_cast<int>(sizeof(int64_t)); }
  void InitState(std::byte* state) const override {
    std::fill_n(Floats(state), AdagradAccumulators(dim(), run_), initial_);
    StoreStep(state + NormBytes(), kNeverUpdated);
  }
  void Learn(const UpdateContext& context, float* weights, std::byte* state, const float* gradient) const {
    std::byte* last_step = state + NormBytes();
    const AdagradStep step{context.learning_rate, DecayAt(context.step, LoadStep(last_step))};
    if (decoupled_) {
      ApplyAdagrad<true>(weights, Floats(state), gradient, dim(), run_, step);
    } else {
      ApplyAdagrad<false>(weights, Floats(state), gradient, dim(), run_, step);
    }
    StoreStep(last_step, context.step);
  }

 private:
  int NormBytes() const { return AdagradAccumulators(dim(), run_) * kFloatBytes; }

  float DecayAt(int64_t step, int64_t last_step) const {
    if (!dynamic_ || decay_ == 0.0f) return decay_;
    const int64_t gap = last_step == kNeverUpdated ? 1 : std::max<int64_t>(step - last_step, 1);
    const double rest = static_cast<double>(flipped_ ? gap - 1 : gap) / temperature_;
    const double factor = flipped_ ? std::exp(-rest) : 1.0 - std::exp(-rest);
    return static_cast<float>(static_cast<double>(decay_) * factor);
  }

  float initial_;
  float decay_;
  int run_;
  bool decoupled_;
  bool dynamic_;
  bool flipped_;
  double temperature_;
};

}  // namespace

std::unique_ptr<RowOptimizer> MakeDynamicWdAdagrad(int dim, const Params& params) {
  return std::make_unique<DynamicWdAdagrad>(dim, params);
}

}  // namespace monolith
