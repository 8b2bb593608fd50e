// Group::Apply: one optimizer step over the ids of a plan.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/error.h"
#include "table/gradient_sums.h"
#include "table/group.h"
#include "table/planned_walk.h"
#include "table/row_copy.h"
#include "table/row_seed.h"

namespace monolith {
namespace {

struct AppliedSum : Applied {
  AppliedSum& operator+=(const AppliedSum& other) {
    updated += other.updated;
    inserted += other.inserted;
    filtered += other.filtered;
    skipped += other.skipped;
    return *this;
  }
};

[[noreturn]] void Refuse(const std::string& message) { throw Error(Code::kInvalidArgument, message); }

}  // namespace

// The inputs of one call of Apply, computed once; the walk calls Visit for each unique id under its lock.
class Applier {
 public:
  Applier(Group& group, const Plan& plan, const Update& update)
      : group_(group),
        plan_(plan),
        update_(update),
        times_(update.times, plan.num_ids()),
        tables_(CheckedTables()),
        gradients_(OccurrencesOf(plan), Dims(),
                   {update.gradients,
                    update.per_unique,
                    update.gradient_rows,
                    update.gradient_scales,
                    update.scale,
                    update.known_finite,
                    {}}) {
    LayOut();
    if (!gradients_.all_finite()) RefuseNonFinite();
  }

  Applied Run() {
    const bool hinted = plan_.hints_identity == group_.rows_identity_;
    PlannedWalk<AppliedSum> walk(group_.locks_.get(), group_.buckets_.get(), tables_, plan_, hinted,
                                 group_.clock_.logs_changes);
    const Applied applied = walk.Run(*this);
    for (size_t t = 0; t < tables_.size(); ++t) {
      const int64_t begin = plan_.table_splits[t], end = plan_.table_splits[t + 1];
      if (begin < end) tables_[t]->RaiseNewestTime(times_.Newest(begin, end));
      group_.EnforceCap(*tables_[t]);
    }
    return applied;
  }

  [[gnu::always_inline]] void Visit(const PlannedId& id, AppliedSum& applied) {
    const float* gradient = gradients_.Of(id.place, id.table_place);
    const Rule& rule = rules_[id.table_place];
    if (id.record == nullptr || rule.optimizer == nullptr) {
      const PlannedId copy = id;  // so that `id` itself need not be in memory, and stays in registers
      return ApplyGeneral(copy, gradient, applied);
    }
    id.shard().BeforeChange(id.record, id.row, id.table.rows, group_.clock_);
    std::byte* payload = PayloadOf(id.record);
    rule.optimizer->Update(rule.context, reinterpret_cast<float*>(payload), payload + rule.state_offset, gradient);
    Touch(id.record, id.place);
    ++applied.updated;
  }

 private:
  // Update rule of a table in the simple case: one segment, and nothing to do but to run its optimizer.
  struct Rule {
    const RowOptimizer* optimizer = nullptr;  // null in the general case
    UpdateContext context{};
    int state_offset = 0;
  };

  // The general case: a new row, or a table that a Rule does not cover.
  [[gnu::noinline]] void ApplyGeneral(const PlannedId& id, const float* gradient, AppliedSum& applied) {
    const TableSpec& spec = id.table.spec;
    if (spec.nonfinite == NonFinite::kSkip && !AllFinite(gradient, spec.dim())) {
      ++applied.skipped;
      return;
    }
    std::byte* record = id.record == nullptr ? LearnNew(id, gradient) : LearnKnown(id, gradient);
    if (record == nullptr) {
      ++applied.filtered;
      return;
    }
    Touch(record, id.place);
    ++applied.updated;
    applied.inserted += id.record == nullptr;
  }

  void Touch(std::byte* record, int64_t place) const {
    RowHeader& header = *HeaderOf(record);
    header.time = NewestTimeOf(place);
    header.meta = MakeMeta(std::min(FrequencyOf(header) + 1, kMaxFrequency), EpochOf(header));
  }

  std::vector<Table*> CheckedTables() const {
    if (update_.step < 0) Refuse("step must be >= 0, got " + std::to_string(update_.step));
    if (static_cast<int>(update_.learning_rates.size()) != group_.num_learning_rates()) {
      Refuse("expected " + std::to_string(group_.num_learning_rates()) + " learning rates, one for each segment, got " +
             std::to_string(update_.learning_rates.size()));
    }
    for (const float rate : update_.learning_rates) {
      if (!(std::isfinite(rate) && rate >= 0.0f)) {
        Refuse("learning rates must be finite and >= 0, got " + std::to_string(rate));
      }
    }
    std::vector<Table*> tables;
    for (auto& table : group_.TablesOf(plan_)) {
      if (table->spec.serving) Refuse("table '" + table->spec.name + "' is a serving table and cannot learn");
      tables.push_back(table.get());
    }
    return tables;
  }

  std::vector<int> Dims() const {
    std::vector<int> dims;
    for (const Table* table : tables_) dims.push_back(table->spec.dim());
    return dims;
  }

  void LayOut() {
    int64_t values = 0;
    int rate = 0;
    for (uint32_t before = 0; before < tables_[0]->number; ++before) {
      rate += static_cast<int>(group_.tables_[before]->spec.segments().size());
    }
    for (size_t t = 0; t < tables_.size(); ++t) {
      const TableSpec& spec = tables_[t]->spec;
      first_value_.push_back(values);
      first_rate_.push_back(rate);
      rules_.push_back(RuleOf(spec, update_.learning_rates[rate]));
      values += (plan_.table_splits[t + 1] - plan_.table_splits[t]) * spec.dim();
      rate += static_cast<int>(spec.segments().size());
      max_dim_ = std::max(max_dim_, (spec.dim() + 3) / 4 * 4);
      max_row_bytes_ = std::max(max_row_bytes_, spec.row_bytes());
    }
    const int64_t expected = update_.per_unique ? gradients_.num_sums() : values;
    if (!update_.latest.empty() && static_cast<int64_t>(update_.latest.size()) != expected) {
      Refuse("latest must have " + std::to_string(expected) + " elements, got " +
             std::to_string(update_.latest.size()));
    }
  }

  Rule RuleOf(const TableSpec& spec, float learning_rate) const {
    const Segment& segment = spec.segments().front();
    const bool simple = spec.segments().size() == 1 && spec.nonfinite != NonFinite::kSkip &&
                        !segment.compressor->quantises_training() && !segment.optimizer->needs_whole_context();
    if (!simple) return {};
    return {segment.optimizer.get(), {learning_rate, update_.step, 0, nullptr}, segment.state_offset};
  }

  // Called before anything is changed.
  void RefuseNonFinite() const {
    const auto raises = [this](int table) { return tables_[table]->spec.nonfinite == NonFinite::kRaise; };
    int64_t position = gradients_.FirstNonFinite(raises);
    const bool is_sum = position < 0;
    if (is_sum) position = gradients_.FirstNonFiniteSum(raises);
    if (position < 0) return;
    const auto after = std::upper_bound(plan_.table_splits.begin(), plan_.table_splits.end(), position);
    const size_t table = (after - plan_.table_splits.begin()) - 1;
    Refuse("table '" + tables_[table]->spec.name + "': the " + (is_sum ? "sum of the gradients" : "gradient") +
           " of id " + std::to_string(plan_.unique[plan_.inverse[position]]) + " (position " +
           std::to_string(position - plan_.table_splits[table]) +
           ") is not finite; nothing was applied. Set nonfinite='skip' or 'apply' in the table's config to continue");
  }

  std::byte* LearnKnown(const PlannedId& id, const float* gradient) const {
    id.shard().BeforeChange(id.record, id.row, id.table.rows, group_.clock_);
    Learn(id, PayloadOf(id.record), gradient);
    return id.record;
  }

  // Returns null when admission rejects the id. The row is made in scratch memory and then copied: its own memory has
  // never been touched, and reading back there what was just written would stall.
  std::byte* LearnNew(const PlannedId& id, const float* gradient) {
    const auto count = static_cast<uint32_t>(plan_.CountOf(id.place));
    if (group_.IsNotAdmitted(id.bucket, id.table, id.id, id.hash, count, update_.has_step ? update_.step : kNoStep))
      return nullptr;
    const uint32_t row = group_.InsertUnset(id.bucket_number, id.table, id.id, id.hash, id.home);
    std::byte* record = id.table.rows.AtAllocated(row);
    auto* payload = reinterpret_cast<std::byte*>(Scratch() + max_dim_);
    id.table.spec.InitPayload(id.id, payload);
    const Rule& rule = rules_[id.table_place];
    if (rule.optimizer != nullptr) {
      rule.optimizer->Update(rule.context, reinterpret_cast<float*>(payload), payload + rule.state_offset, gradient);
    } else {
      Learn(id, payload, gradient);
    }
    const size_t floats = (id.table.rows.record_bytes() - sizeof(RowHeader)) / sizeof(float);
    CopyFloats(reinterpret_cast<float*>(PayloadOf(record)), reinterpret_cast<const float*>(payload),
               static_cast<int>(floats));
    return record;
  }

  void Learn(const PlannedId& id, std::byte* payload, const float* gradient) const {
    const TableSpec& spec = id.table.spec;
    auto* weights = reinterpret_cast<float*>(payload);
    const uint64_t seed = UpdateSeedOf(spec.RowSeed(id.id), update_.step);
    const float* latest = LatestOf(id);
    const float* rate = update_.learning_rates.data() + first_rate_[id.table_place];
    for (const Segment& segment : spec.segments()) {
      const float* own = gradient + segment.first_dim;
      if (segment.compressor->quantises_training()) {
        float* adjusted = Scratch();
        segment.compressor->Backward(weights + segment.first_dim, own, adjusted, segment.dim, update_.step);
        own = adjusted;
      }
      const UpdateContext context{*rate++, update_.step, seed + static_cast<uint64_t>(segment.first_dim),
                                  latest == nullptr ? nullptr : latest + segment.first_dim};
      segment.optimizer->Update(context, weights + segment.first_dim, payload + segment.state_offset, own);
    }
  }

  const float* LatestOf(const PlannedId& id) const {
    if (update_.latest.empty()) return nullptr;
    if (update_.per_unique) return update_.latest.data() + gradients_.OffsetOf(id.place, id.table_place);
    const int64_t row = plan_.order[plan_.starts[id.place]] - plan_.table_splits[id.table_place];
    return update_.latest.data() + first_value_[id.table_place] + row * id.table.spec.dim();
  }

  uint32_t NewestTimeOf(int64_t place) const {
    if (times_.single()) return times_.Of(0);
    uint32_t newest = 0;
    for (int32_t k = plan_.starts[place]; k < plan_.starts[place + 1]; ++k) {
      newest = std::max(newest, times_.Of(plan_.order[k]));
    }
    return newest;
  }

  // Thread-local memory for an adjusted gradient and the payload of a new row.
  float* Scratch() const {
    thread_local std::vector<float> scratch;
    const size_t size = static_cast<size_t>(max_dim_) + max_row_bytes_ / sizeof(float);
    if (scratch.size() < size) scratch.resize(size);
    return scratch.data();
  }

  Group& group_;
  const Plan& plan_;
  const Update& update_;
  const Times times_;
  const std::vector<Table*> tables_;
  const GradientSums gradients_;
  std::vector<int64_t> first_value_;  // of each table, in `latest`
  std::vector<int> first_rate_;
  std::vector<Rule> rules_;  // of each table
  int max_dim_ = 0;          // rounded up, so that the data after it in scratch memory is aligned
  size_t max_row_bytes_ = 0;
};

Applied Group::Apply(const Plan& plan, const Update& update, std::span<const Push> pushes) {
  Applied applied;
  int64_t evicted = 0;
  {
    Gate::Writing call(gate_);
    WorkerClocks::Turns turns(workers_, pushes);
    if (turns.are_duplicates()) return {.duplicate = true};
    const int64_t before = evicts_in_turn_ ? NewestTime(-1) : 0;
    applied = Applier(*this, plan, update).Run();
    RaiseNewestTime(-1, update.newest_time);
    if (evicts_in_turn_) evicted = EvictInTurn(before, NewestTime(-1));  // inside the gate: a cut has both or none
    turns.Record();
  }
  if (evicted != 0) ReturnMemory();
  return applied;
}

bool Group::IsDuplicate(std::span<const Push> pushes) {
  Gate::Shared call(gate_);
  return WorkerClocks::Turns(workers_, pushes).are_duplicates();
}

}  // namespace monolith
