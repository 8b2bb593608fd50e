// Rows that the kernels learn have the bits of a Group's.
#include "device/kernels/learn.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/twin_tables_for_test.h"
#include "optimizer/kinds.h"
#include "optimizer/row_for_test.h"

namespace monolith::device {
namespace {

// A kind of optimizer and its parameters, the common ones included.
struct Variant {
  std::string kind;
  ParamMap params;

  Kernel kernel() const { return {kind, Params(params)}; }
  bool allows(int dim) const { return kind != "batch_softmax" || dim == 1; }
  std::string text() const {
    std::string text = kind;
    for (const auto& [name, value] : params) {
      if (value != 0.0) text += " " + name + "=" + std::to_string(value);
    }
    return text;
  }
};

const ParamMap kParameters = {{"initial_accumulator_value", 0.1},
                              {"hessian_compression_times", 1},
                              {"weight_decay_factor", 0.02},
                              {"averaging_ratio", 0.9},
                              {"epsilon", 0.01},
                              {"beta", 1},
                              {"beta1", 0.9},
                              {"beta2", 0.99},
                              {"use_nesterov", 0},
                              {"l1_regularization_strength", 0.05},
                              {"l2_regularization_strength", 0.01},
                              {"momentum", 0.9},
                              {"decouple_weight_decay", 0},
                              {"enable_dynamic_wd", 0},
                              {"dynamic_wd_temperature", 3},
                              {"flip_direction", 0},
                              {"stochastic_rounding", 0},
                              {"delay_compensation_lambda", 0}};

// Every kind with the values of a parameter that choose another rule, or another way through one.
std::vector<Variant> Variants(const ParamMap& common = {}) {
  const std::vector<ParamMap> changes = {
      {},
      {{"use_nesterov", 1}},
      {{"hessian_compression_times", 4}},
      {{"decouple_weight_decay", 1}, {"enable_dynamic_wd", 1}},
      {{"hessian_compression_times", 3}, {"decouple_weight_decay", 1}, {"enable_dynamic_wd", 1}, {"flip_direction", 1}},
      {{"l2_regularization_strength", 0}, {"weight_decay_factor", 0}}};
  std::vector<Variant> variants;
  std::set<std::pair<const void*, std::string>> known;  // few parameters matter to a rule
  for (const RowOptimizerKind& kind : RowOptimizerKinds()) {
    for (const ParamMap& change : changes) {
      ParamMap params = change;
      params.insert(common.begin(), common.end());
      params.insert(kParameters.begin(), kParameters.end());
      const auto optimizer = MakeRowOptimizer(std::string(kind.name), 1, Params(params));
      const RuleView rule = optimizer->rule();
      if (known.insert({rule.type, std::string(static_cast<const char*>(rule.rule), rule.bytes)}).second) {
        variants.push_back({std::string(kind.name), params});
      }
    }
  }
  return variants;
}

Kernel Uniform() { return {"random_uniform", Params({{"minval", -0.5}, {"maxval", 0.75}})}; }
Kernel Fp32() { return {"fp32", Params()}; }
Kernel OneBit() {
  return {"one_bit", Params({{"step_size", 2}, {"init_scale", 1.5}, {"max_scale", 4}, {"amplitude", 0.5}})};
}
Kernel FixedR8() { return {"fixed_r8", Params({{"r", 0.9}})}; }
Variant Named(const std::string& kind, ParamMap params = {}) {
  params.insert(kParameters.begin(), kParameters.end());
  return {kind, params};
}

TableSpec SpecOf(const std::string& name, int dim, const Kernel& optimizer, const Kernel& initializer = Uniform(),
                 const Kernel& compressor = Fp32()) {
  TableSpec spec(name);
  spec.seed = DigestOf(name);
  spec.nonfinite = NonFinite::kApply;
  spec.AddSegment(dim, initializer, optimizer, compressor);
  return spec;
}

class LearnKernelsTest : public LauncherTest {
 protected:
  TwinTables TwinsOf(TableSpec spec) {
    std::vector<TableSpec> specs;
    specs.push_back(std::move(spec));
    return TwinTables(launcher(), std::move(specs));
  }

  // Four updates of ids, of which more and more are known.
  static void Learn(TwinTables& twins, const std::string& what, const std::vector<int64_t>& shares = {0, 1},
                    bool has_latest = false) {
    for (int64_t step = 0; step < 4; ++step) {
      const auto seed = static_cast<uint32_t>(step);
      std::vector<int64_t> ids, splits = {0};
      for (size_t table = 0; table + 1 < shares.size(); ++table) {
        for (int64_t i = 0; i < 10 + 3 * step; ++i) ids.push_back((i + 1) * (0x100000001 + shares[table]) - 40);
        splits.push_back(static_cast<int64_t>(ids.size()));
      }
      twins.Plan(ids, splits);
      UpdateForTest update = {.gradients = NoiseForTest(static_cast<int>(twins.num_values()), 10 + seed)};
      if (has_latest) update.latest = NoiseForTest(static_cast<int>(twins.num_values()), 20 + seed);
      update.step = 2 * step + 1;
      update.times = {1000 + step};
      update.epoch = seed + 1;
      twins.Apply(update);
      twins.ExpectSameRows(what + ", step " + std::to_string(step));
      if (testing::Test::HasFailure()) return;
    }
    twins.ExpectSameReads(9);
  }
};

TEST_P(LearnKernelsTest, EveryRuleOfEveryDim) {
  for (const Variant& variant : Variants()) {
    for (const int dim : {1, 3, 5, 16, 33, 64, 1024}) {
      if (!variant.allows(dim)) continue;
      TwinTables twins = TwinsOf(SpecOf("table", dim, variant.kernel()));
      Learn(twins, variant.text() + ", dim " + std::to_string(dim));
      if (HasFailure()) return;
    }
  }
}

TEST_P(LearnKernelsTest, EveryRuleRoundedCompensatedAndQuantised) {
  const ParamMap rounded = {{"stochastic_rounding", 1}}, compensated = {{"delay_compensation_lambda", 0.25}};
  ParamMap both = rounded;
  both.insert(compensated.begin(), compensated.end());
  for (const ParamMap& common : {rounded, compensated, both}) {
    for (const Variant& variant : Variants(common)) {
      for (const int dim : {1, 12}) {
        if (!variant.allows(dim)) continue;
        for (const bool has_latest : {false, true}) {
          TwinTables twins = TwinsOf(SpecOf("table", dim, variant.kernel(), Uniform(), has_latest ? OneBit() : Fp32()));
          Learn(twins, variant.text(), {0, 1}, has_latest);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_P(LearnKernelsTest, EveryInitializerAndCompressor) {
  const std::vector<Kernel> initializers = {{"zeros", Params()},
                                            {"ones", Params()},
                                            {"constant", Params({{"constant", -0.25}})},
                                            Uniform(),
                                            {"glorot_uniform", Params({{"scale", 2}})},
                                            {"random_normal", Params({{"mean", 0.1}, {"stddev", 0.5}})},
                                            {"truncated_normal", Params({{"mean", -0.1}, {"stddev", 0.75}})}};
  const std::vector<Kernel> compressors = {Fp32(), {"fp16", Params()}, {"bf16", Params()}, FixedR8(), OneBit()};
  for (const Kernel& initializer : initializers) {
    for (const Kernel& compressor : compressors) {
      for (const int dim : {1, 7, 40, 130}) {
        TwinTables twins = TwinsOf(SpecOf("table", dim, Named("adagrad").kernel(), initializer, compressor));
        Learn(twins, initializer.kind + ", " + compressor.kind + ", dim " + std::to_string(dim));
        if (HasFailure()) return;
      }
    }
  }
}

// Tables of several segments, packed and not, some of which have the same rule.
std::vector<TableSpec> MixedTables() {
  const Kernel adagrad = Named("adagrad").kernel(), adam = Named("adam").kernel();
  const ParamMap special = {{"stochastic_rounding", 1}, {"delay_compensation_lambda", 0.5}};
  std::vector<TableSpec> specs;
  specs.push_back(SpecOf("a", 16, adagrad));
  specs.push_back(SpecOf("b", 1, Named("ftrl", {{"initial_accumulator_value", 0.1}}).kernel()));
  specs.back().AddSegment(8, {"random_normal", Params({{"mean", 0.0}, {"stddev", 0.5}})}, adagrad, FixedR8());
  specs.back().AddSegment(4, Uniform(), adam, OneBit());
  specs.push_back(SpecOf("c", 64, adam));
  specs.back().AddSegment(1, Uniform(), Named("batch_softmax").kernel(), Fp32());
  specs.back().AddSegment(3, Uniform(), Named("group_ftrl", special).kernel(), OneBit());
  specs.back().AddSegment(4, Uniform(), Named("adam", special).kernel(), Fp32());
  specs.push_back(SpecOf("d", 5, Named("sgd").kernel()));
  return specs;
}

TEST_P(LearnKernelsTest, TablesOfSeveralSegments) {
  for (const bool has_latest : {false, true}) {
    TwinTables twins(launcher(), MixedTables());
    EXPECT_TRUE(twins.rules().adjusts_gradients());
    EXPECT_TRUE(twins.rules().quantises());
    Learn(twins, "mixed", {0, 5, 7, 9, 11}, has_latest);
  }
}

TEST_P(LearnKernelsTest, APlanOfOneTableUsesItsOwnSegmentsAndRates) {
  TwinTables twins(launcher(), MixedTables());
  for (int table = 0; table < 4; ++table) {
    const std::vector<int64_t> ids = {3, 4, 5, 3, 900};
    for (int64_t step = 0; step < 2; ++step) {
      twins.Plan(ids, {0, 5}, {}, table);
      UpdateForTest update = {.gradients = NoiseForTest(static_cast<int>(twins.num_values()), 3)};
      update.rates = {0.5f, 0.25f, 0.125f, 1.0f, 0.75f, 0.375f, 0.1875f, 0.0625f, 0.03f};
      update.step = step;
      twins.Apply(update);
      twins.ExpectSameRows("table " + std::to_string(table));
      twins.ExpectSameReads(step);
    }
  }
}

TEST_P(LearnKernelsTest, WideKeysDrawTheValuesOfTheirSlots) {
  std::vector<TableSpec> specs = MixedTables();
  const std::vector<int32_t> slots = {4, 90, 32767};
  specs[0].SetWideSlots(slots);
  specs[2].SetWideSlots(std::vector<int32_t>{7});
  TwinTables twins(launcher(), std::move(specs));
  std::vector<int64_t> ids, splits = {0};
  std::vector<uint16_t> buckets;
  for (int table = 0; table < 4; ++table) {
    for (int64_t i = 0; i < 30; ++i) {
      const uint64_t wide_bits = kWideKey | static_cast<uint64_t>(i % 5) << kBelowBucketBits;  // some have no slot
      const bool is_wide = table % 2 == 0 && i % 3 != 0;
      const SlotKey key = is_wide ? SlotKeyOf(~i, 0, wide_bits) : SlotKeyOf(i, uint64_t{5} << kNarrowBits, 0);
      ids.push_back(key.key);
      buckets.push_back(static_cast<uint16_t>(key.bucket));
    }
    splits.push_back(static_cast<int64_t>(ids.size()));
  }
  for (int64_t step = 0; step < 2; ++step) {
    twins.Plan(ids, splits, buckets);
    UpdateForTest update = {.gradients = NoiseForTest(static_cast<int>(twins.num_values()), 3)};
    update.step = step;
    twins.Apply(update);
    twins.ExpectSameRows("wide");
  }
}

TEST_P(LearnKernelsTest, ARateOfZeroStartsRowsAndLeavesTheirWeights) {
  for (const Variant& variant : Variants({{"stochastic_rounding", 1}})) {
    if (!variant.allows(6)) continue;
    TwinTables twins = TwinsOf(SpecOf("table", 6, variant.kernel()));
    for (int64_t step = 0; step < 3; ++step) {
      twins.Plan({1, 2, 3, 4 + step}, {0, 4});
      UpdateForTest update = {.gradients = NoiseForTest(24, 5)};
      update.rates = {step == 1 ? 0.5f : 0.0f};
      update.step = step;
      twins.Apply(update);
      twins.ExpectSameRows(variant.text());
      if (HasFailure()) return;
    }
  }
}

TEST_P(LearnKernelsTest, GradientsOfEverySizeGiveTheSameWeights) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> values = {0.0f,    -0.0f, 1e-42f,   -1e-38f,   1e-20f, 1.0f,
                                     -1e-10f, 3e19f, -3.3e38f, kInfinity, kNan,   -kInfinity};
  for (const Variant& variant : Variants()) {
    if (!variant.allows(12)) continue;
    for (const Kernel& compressor : {Fp32(), OneBit()}) {
      TwinTables twins = TwinsOf(SpecOf("table", 12, variant.kernel(), Uniform(), compressor));
      for (int64_t step = 0; step < 3; ++step) {
        twins.Plan({1, 2}, {0, 2});
        UpdateForTest update = {.gradients = values};
        update.gradients.insert(update.gradients.end(), values.rbegin(), values.rend());
        update.step = step;
        twins.Apply(update);
        twins.ExpectSameRows(variant.text());
        twins.ExpectSameReads(step);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(SegmentRulesTest, EveryRuleHasKernelsAndEveryKernelHasItsRule) {
  std::set<const void*> types;
  for (const Variant& variant : Variants({{"stochastic_rounding", 1}, {"delay_compensation_lambda", 1}})) {
    const auto optimizer = MakeRowOptimizer(variant.kind, 1, Params(variant.params));
    EXPECT_TRUE(HasKernels(*optimizer)) << variant.text();
    EXPECT_LE(optimizer->rule().bytes, static_cast<size_t>(kRuleBytes)) << variant.text();
    EXPECT_EQ(optimizer->rule().delay_compensation_lambda, 1.0f);
    EXPECT_TRUE(optimizer->rule().stochastic_rounding);
    types.insert(optimizer->rule().type);
  }
#define MONOLITH_COUNT(argument, ...) +1
  EXPECT_EQ(types.size(), size_t{MONOLITH_ROW_RULES(, MONOLITH_COUNT, MONOLITH_COUNT, MONOLITH_COUNT)});
#undef MONOLITH_COUNT
}

TEST(SegmentRulesTest, AnOptimizerWithoutKernelsIsKnown) {
  struct OtherRule {};
  class Other : public RowOptimizer {
   public:
    Other() : RowOptimizer(1) {}
    int StateBytes() const override { return 0; }
    void InitState(std::byte*) const override {}
    void Update(const UpdateContext&, float*, std::byte*, const float*) const override {}
    RuleView rule() const override { return {RuleType<OtherRule>(), nullptr, 0}; }
  };
  EXPECT_FALSE(HasKernels(Other()));
}

INSTANTIATE_FOR_LAUNCHERS(LearnKernelsTest);

}  // namespace
}  // namespace monolith::device
