#include "device/segment_rules.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>

#include "base/error.h"

namespace monolith::device {
namespace {

// A rule's kernels.
struct RuleKernels {
  const void* type;
  void (*learn)(Launcher&, Stream, const LearnInput&, uint32_t lane_bits);
};

uint64_t ThreadsFor(const LearnInput& input, uint32_t lane_bits) { return uint64_t{input.ids.count} << lane_bits; }

template <typename Rule>
void LearnPlain(Launcher& launcher, Stream stream, const LearnInput& input, uint32_t lane_bits) {
  launcher.Launch(ThreadsFor(input, lane_bits), LearnRows<Rule>{input, lane_bits}, stream);
}

template <typename Rule>
void LearnScalar(Launcher& launcher, Stream stream, const LearnInput& input, uint32_t lane_bits) {
  LearnPlain<Rule>(launcher, stream, input, lane_bits);
  launcher.Launch(input.ids.count, FinishRows<Rule>{input}, stream);
}

template <typename Rule>
void LearnSegment(Launcher& launcher, Stream stream, const LearnInput& input, uint32_t) {
  launcher.Launch(input.ids.count, LearnSegments<Rule>{input}, stream);
}

#define MONOLITH_PLAIN(argument, name, ...) {RuleType<__VA_ARGS__>(), LearnPlain<__VA_ARGS__>},
#define MONOLITH_SCALAR(argument, name, ...) {RuleType<__VA_ARGS__>(), LearnScalar<__VA_ARGS__>},
#define MONOLITH_SEGMENT(argument, name, ...) {RuleType<__VA_ARGS__>(), LearnSegment<__VA_ARGS__>},
const RuleKernels kRules[] = {MONOLITH_ROW_RULES(, MONOLITH_PLAIN, MONOLITH_SCALAR, MONOLITH_SEGMENT)};
#undef MONOLITH_PLAIN
#undef MONOLITH_SCALAR
#undef MONOLITH_SEGMENT

// The number of a rule among those that have kernels; theirs if it has none.
size_t NumberOf(const RuleView& rule) {
  const auto found = std::find_if(std::begin(kRules), std::end(kRules),
                                  [&](const RuleKernels& kernels) { return kernels.type == rule.type; });
  return static_cast<size_t>(found - std::begin(kRules));
}

}  // namespace

bool HasKernels(const RowOptimizer& optimizer) { return NumberOf(optimizer.rule()) != std::size(kRules); }

uint64_t BlocksForCounting(const Launcher& launcher, uint64_t count) {
  constexpr uint64_t kTurns = 4;  // of a block that runs
  return std::min(kTurns * launcher.num_concurrent_blocks(), (count + kBlock - 1) / kBlock);
}

void SegmentRules::Segments::Add(uint32_t number, uint32_t dim) {
  numbers.push_back(number);
  max_dim = std::max(max_dim, dim);
}

SegmentRules::SegmentRules(const Group& group) : of_rule_(std::size(kRules)) {
  for (int table = 0; table < group.num_tables(); ++table) AddTable(group.table(table).spec);
  segments_at_ = Append(segments_);
  traits_at_ = Append(tables_);
  wide_slots_at_ = Append(wide_slots_);
  ForEachList([this](Segments& list) {
    list.starts_at = Append(list.starts);
    list.numbers_at = Append(list.numbers);
  });
}

template <typename Visit>
void SegmentRules::ForEachList(Visit&& visit) {
  for (Segments* list : {&all_, &adjusting_, &rounding_, &quantising_}) visit(*list);
  for (Segments& list : of_rule_) visit(list);
}

void SegmentRules::AddTable(const TableSpec& spec) {
  tables_.push_back({spec.seed, static_cast<uint32_t>(wide_slots_.size()),
                     static_cast<uint32_t>(spec.wide_slots().size()),
                     static_cast<uint32_t>(spec.training_payload_bytes()) / uint32_t{sizeof(float)}, spec.nonfinite});
  wide_slots_.insert(wide_slots_.end(), spec.wide_slots().begin(), spec.wide_slots().end());
  uint32_t number = 0;
  for (const Segment& segment : spec.segments()) AddSegment(segment, number++);
  ForEachList([](Segments& list) { list.EndTable(); });
}

void SegmentRules::AddSegment(const Segment& segment, uint32_t number_in_table) {
  const RuleView rule = segment.optimizer->rule();
  const size_t kernels = NumberOf(rule);
  if (kernels == std::size(kRules) || rule.bytes > kRuleBytes) {
    throw Error(Code::kInternal, "optimizer " + segment.optimizer_kind + " has no kernel");
  }
  const auto number = static_cast<uint32_t>(segments_.size());
  SegmentView view{};
  view.dim = static_cast<uint32_t>(segment.dim);
  view.first_dim = static_cast<uint32_t>(segment.first_dim);
  view.state_offset = static_cast<uint32_t>(segment.state_offset);
  view.number = number_in_table;
  view.rate = number;
  view.delay_compensation_lambda = rule.delay_compensation_lambda;
  view.initializer = segment.initializer->rule(segment.dim);
  view.quantiser = segment.compressor->quantiser();
  view.is_adjusted = view.quantiser.changes_gradients() || rule.delay_compensation_lambda != 0.0f;
  std::memcpy(view.rule, rule.rule, rule.bytes);
  segments_.push_back(view);
  all_.Add(number, view.dim);
  of_rule_[kernels].Add(number, view.dim);
  if (view.is_adjusted) adjusting_.Add(number, view.dim);
  if (rule.stochastic_rounding) rounding_.Add(number, view.dim);
  if (view.quantiser.kind != QuantiserRule::Kind::kNone) quantising_.Add(number, view.dim);
}

template <typename T>
size_t SegmentRules::Append(const std::vector<T>& values) {
  constexpr size_t kBoundary = 16;
  static_assert(alignof(T) <= kBoundary);
  const size_t at = (bytes_.size() + kBoundary - 1) / kBoundary * kBoundary;
  bytes_.resize(at + values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes_.data() + at, values.data(), values.size() * sizeof(T));
  return at;
}

SegmentList SegmentRules::ListOf(const std::byte* copy, const Segments& segments, uint32_t first_table) const {
  return {reinterpret_cast<const SegmentView*>(copy + segments_at_),
          reinterpret_cast<const uint32_t*>(copy + segments.starts_at) + first_table,
          reinterpret_cast<const uint32_t*>(copy + segments.numbers_at)};
}

RowSeeds SegmentRules::SeedsOf(const std::byte* copy, uint32_t first_table) const {
  return {traits(copy) + first_table, reinterpret_cast<const int32_t*>(copy + wide_slots_at_)};
}

void SegmentRules::Learn(Launcher& launcher, Stream stream, const std::byte* copy, const RowsOfPlan& plan,
                         const LearnArguments& given) const {
  const RowSeeds seeds = SeedsOf(copy, plan.first_table);
  const auto input_of = [&](const Segments& segments) {
    return LearnInput{plan.ids,    plan.tables, plan.layout,     ListOf(copy, segments, plan.first_table),
                      plan.rows,   given.ranks, given.gradients, given.adjusted,
                      given.rates, given.step,  given.refused};
  };
  const auto has_any = [&](const Segments& list) { return list.HasAny(plan.first_table, plan.ids.num_tables); };
  const auto launch = [&](const Segments& segments, const auto& make_kernel) {
    const uint32_t lane_bits = LaneBitsOf(segments);
    launcher.Launch(uint64_t{plan.ids.count} << lane_bits, make_kernel(input_of(segments), lane_bits), stream);
  };
  launch(all_, [&](const LearnInput& input, uint32_t lane_bits) { return InitRows{input, seeds, lane_bits}; });
  if (has_any(adjusting_)) {
    if (given.adjusted == nullptr) throw Error(Code::kInternal, "no memory for adjusted gradients");
    launch(adjusting_, [&](const LearnInput& input, uint32_t lane_bits) {
      return AdjustGradients{input, given.latest, lane_bits, given.adjusted};
    });
  }
  for (size_t rule = 0; rule < of_rule_.size(); ++rule) {
    const Segments& segments = of_rule_[rule];
    if (has_any(segments)) kRules[rule].learn(launcher, stream, input_of(segments), LaneBitsOf(segments));
  }
  if (has_any(rounding_)) {
    launch(rounding_,
           [&](const LearnInput& input, uint32_t lane_bits) { return RoundWeights{input, seeds, lane_bits}; });
  }
}

void SegmentRules::Retrieve(Launcher& launcher, Stream stream, const std::byte* copy, const RowsOfPlan& plan,
                            int64_t step, float* weights) const {
  if (!quantising_.HasAny(plan.first_table, plan.ids.num_tables)) return;
  const uint32_t lane_bits = LaneBitsOf(quantising_);
  launcher.Launch(uint64_t{plan.ids.count} << lane_bits,
                  RetrieveRows{plan.ids, plan.layout, ListOf(copy, quantising_, plan.first_table), lane_bits, plan.rows,
                               step, weights},
                  stream);
}

}  // namespace monolith::device
