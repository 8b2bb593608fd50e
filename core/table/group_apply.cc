// Group::Apply: one optimizer step over the ids of a plan.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/thread_pool.h"
#include "table/group.h"
#include "table/planned_walk.h"
#include "table/row_copy.h"

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

// Everything one call of Apply needs to know, worked out once; the walk calls Visit for each unique id under its lock.
class Applier {
 public:
  Applier(Group& group, const Plan& plan, const Update& update)
      : group_(group), plan_(plan), update_(update), times_(update.times, plan.num_ids()) {
    for (auto& table : group_.tables_) tables_.push_back(table.get());
    CheckCall();
    LayOut();
    CheckGradients();
  }

  Applied Run() {
    const bool hinted = plan_.hints_identity == group_.rows_identity_;
    PlannedWalk<AppliedSum> walk(group_.locks_.get(), group_.buckets_.get(), tables_, plan_, hinted);
    const Applied applied = walk.Run(*this);
    for (size_t t = 0; t < tables_.size(); ++t) {
      const int64_t begin = plan_.table_splits[t], end = plan_.table_splits[t + 1];
      if (begin < end) tables_[t]->RaiseNewestTime(times_.Newest(begin, end));
      group_.EnforceCap(*tables_[t]);
    }
    return applied;
  }

  void Prefetch(int64_t place) const {
    if (update_.per_unique || tables_.size() != 1) return;
    const int32_t begin = plan_.starts[place], end = std::min(plan_.starts[place + 1], begin + kAhead);
    for (int32_t k = begin; k < end; ++k) PrefetchGradient(plan_.order[k], 0);
  }

  void Visit(const PlannedId& id, AppliedSum& applied) {
    float* scratch = Scratch();
    const float* gradient = GradientOf(id, scratch);
    const TableSpec& spec = id.table.spec;
    if (spec.nonfinite == NonFinite::kSkip && !AllFinite(gradient, spec.dim())) {
      ++applied.skipped;
      return;
    }
    std::byte* record = id.row == kNoRow ? LearnNew(id, gradient, scratch) : LearnKnown(id, gradient, scratch);
    if (record == nullptr) {
      ++applied.filtered;
      return;
    }
    RowHeader& header = *HeaderOf(record);
    header.time = NewestTimeOf(id.place);
    header.meta = MakeMeta(std::min(FrequencyOf(header) + 1, kMaxFrequency), EpochOf(header));
    ++applied.updated;
    applied.inserted += id.row == kNoRow;
  }

 private:
  void CheckCall() const {
    if (plan_.num_tables != group_.num_tables()) Refuse("the plan was made for another number of tables");
    if (update_.step < 0) Refuse("step must be >= 0, got " + std::to_string(update_.step));
    if (static_cast<int>(update_.learning_rates.size()) != group_.num_learning_rates()) {
      Refuse("expected " + std::to_string(group_.num_learning_rates()) + " learning rates, one for each segment, got " +
             std::to_string(update_.learning_rates.size()));
    }
    for (const Table* table : tables_) {
      if (table->spec.serving) Refuse("table '" + table->spec.name + "' is a serving table and cannot learn");
    }
    const bool pooled = !update_.gradient_rows.empty() || !update_.gradient_scales.empty();
    if (pooled && (update_.per_unique || tables_.size() != 1)) Refuse("pooled gradients are for one table, per input");
    for (const size_t size : {update_.gradient_rows.size(), update_.gradient_scales.size()}) {
      if (size != 0 && static_cast<int64_t>(size) != plan_.num_ids()) Refuse("pooled gradients need a row and scale per id");
    }
  }

  void LayOut() {
    int64_t values = 0;
    int rate = 0;
    for (size_t t = 0; t < tables_.size(); ++t) {
      const TableSpec& spec = tables_[t]->spec;
      first_value_.push_back(values);
      first_rate_.push_back(rate);
      values += (plan_.table_splits[t + 1] - plan_.table_splits[t]) * spec.dim();
      rate += static_cast<int>(spec.segments().size());
      max_dim_ = std::max(max_dim_, (spec.dim() + 3) / 4 * 4);
      max_row_bytes_ = std::max(max_row_bytes_, spec.row_bytes());
    }
    if (update_.per_unique) LayOutUnique();
    const int64_t expected = update_.per_unique ? group_.NumValues(plan_) : values;
    const auto got = static_cast<int64_t>(update_.gradients.size());
    if (update_.gradient_rows.empty() && got != expected) {
      Refuse("gradients must have " + std::to_string(expected) + " elements, got " + std::to_string(got));
    }
    if (!update_.latest.empty() && static_cast<int64_t>(update_.latest.size()) != values) {
      Refuse("latest must have " + std::to_string(values) + " elements, got " + std::to_string(update_.latest.size()));
    }
    const int64_t num_rows = got / tables_[0]->spec.dim();
    for (const int32_t row : update_.gradient_rows) {
      if (row < 0 || row >= num_rows) Refuse("gradient row " + std::to_string(row) + " is out of range");
    }
  }

  void LayOutUnique() {
    unique_value_.resize(plan_.splits.size() - 1);
    int64_t values = 0;
    for (size_t cell = 0; cell < unique_value_.size(); ++cell) {
      unique_value_[cell] = values;
      values += (plan_.splits[cell + 1] - plan_.splits[cell]) * tables_[cell % tables_.size()]->spec.dim();
    }
  }

  // Finds a gradient that is not finite before anything is changed, where the table's policy is to refuse it.
  void CheckGradients() const {
    constexpr int64_t kPerTask = 1 << 17;
    const bool all_apply = std::none_of(tables_.begin(), tables_.end(), [](const Table* table) {
      return table->spec.nonfinite == NonFinite::kRaise;
    });
    if (all_apply) return;
    const auto size = static_cast<int64_t>(update_.gradients.size());
    std::atomic<bool> finite{true};
    ParallelFor(static_cast<int>((size + kPerTask - 1) / kPerTask), [&](int task) {
      const int64_t begin = task * kPerTask;
      if (!AllFinite(update_.gradients.data() + begin, std::min(kPerTask, size - begin))) finite = false;
    });
    if (!finite) NameOffender();
  }

  void NameOffender() const {
    for (size_t t = 0; t < tables_.size(); ++t) {
      if (tables_[t]->spec.nonfinite != NonFinite::kRaise) continue;
      const int dim = tables_[t]->spec.dim();
      for (int64_t i = plan_.table_splits[t]; i < plan_.table_splits[t + 1]; ++i) {
        const float* gradient = update_.per_unique ? UniqueGradient(plan_.inverse[i], t)
                                                   : update_.gradients.data() + first_value_[t] + RowOf(i, t) * dim;
        if (AllFinite(gradient, dim)) continue;
        Refuse("table '" + tables_[t]->spec.name + "': the gradient of id " +
               std::to_string(plan_.unique[plan_.inverse[i]]) + " (position " + std::to_string(i - plan_.table_splits[t]) +
               ") is not finite; nothing was applied. Set nonfinite='skip' or 'apply' in the table's config to go on");
      }
    }
  }

  // Which row of the gradients an input position takes, counted inside its table.
  int64_t RowOf(int64_t position, size_t table_place) const {
    return update_.gradient_rows.empty() ? position - plan_.table_splits[table_place] : update_.gradient_rows[position];
  }

  // Both ends: a row of gradients seldom begins with a cache line.
  void PrefetchGradient(int32_t position, size_t table_place) const {
    const int dim = tables_[table_place]->spec.dim();
    const float* gradient = update_.gradients.data() + first_value_[table_place] + RowOf(position, table_place) * dim;
    __builtin_prefetch(gradient);
    __builtin_prefetch(gradient + dim - 1);
  }

  const float* UniqueGradient(int64_t place, size_t table_place) const {
    // The cell of a place: only needed where gradients are per unique id, which is the remote path.
    const auto cell_end = std::upper_bound(plan_.splits.data(), plan_.splits.data() + plan_.splits.size(), place);
    const size_t cell = (cell_end - plan_.splits.data()) - 1;
    return update_.gradients.data() + unique_value_[cell] + (place - plan_.splits[cell]) * tables_[table_place]->spec.dim();
  }

  // The sum over the occurrences in input order, times the scale; in `sum`, or where it already lies.
  const float* GradientOf(const PlannedId& id, float* sum) const {
    const int dim = id.table.spec.dim();
    const float* base = update_.gradients.data() + first_value_[id.table_place];
    const int32_t begin = plan_.starts[id.place], end = plan_.starts[id.place + 1];
    const bool scaled = !update_.gradient_scales.empty();
    const float* first = update_.per_unique ? UniqueGradient(id.place, id.table_place)
                                            : base + RowOf(plan_.order[begin], id.table_place) * dim;
    const bool single = update_.per_unique || (end - begin == 1 && !scaled);
    if (single && update_.scale == 1.0f) return first;
    CopyFloats(sum, first, dim);
    if (!single) {
      if (scaled) ScaleFloats(sum, update_.gradient_scales[plan_.order[begin]], dim);
      for (int32_t k = begin + 1; k < end; ++k) {
        const int32_t position = plan_.order[k];
        if (k + kAhead < end) PrefetchGradient(plan_.order[k + kAhead], id.table_place);
        const float* gradient = base + RowOf(position, id.table_place) * dim;
        scaled ? AddScaledFloats(sum, gradient, update_.gradient_scales[position], dim) : AddFloats(sum, gradient, dim);
      }
    }
    if (update_.scale != 1.0f) ScaleFloats(sum, update_.scale, dim);
    return sum;
  }

  std::byte* LearnKnown(const PlannedId& id, const float* gradient, float* scratch) const {
    id.shard.BeforeChange(id.table.rows, id.row, group_.clock_);
    std::byte* record = id.table.rows.AtAllocated(id.row);
    Learn(id, PayloadOf(record), gradient, scratch + max_dim_);
    return record;
  }

  // Null when admission keeps the id out. The row is made in scratch memory and then copied: its own memory has never been touched,
  // and reading back there what was just written would wait for it.
  std::byte* LearnNew(const PlannedId& id, const float* gradient, float* scratch) {
    const auto count = static_cast<uint32_t>(plan_.CountOf(id.place));
    if (group_.KeepsOut(id.bucket, id.table, id.id, id.hash, count, update_.step)) return nullptr;
    const uint32_t row = group_.InsertUnset(id.bucket_number, id.table, id.id, id.hash);
    std::byte* record = id.table.rows.AtAllocated(row);
    auto* payload = reinterpret_cast<std::byte*>(scratch + 2 * max_dim_);
    id.table.spec.InitPayload(id.id, payload);
    Learn(id, payload, gradient, scratch + max_dim_);
    std::memcpy(PayloadOf(record), payload, id.table.rows.record_bytes() - sizeof(RowHeader));
    return record;
  }

  void Learn(const PlannedId& id, std::byte* payload, const float* gradient, float* adjusted) const {
    const TableSpec& spec = id.table.spec;
    auto* weights = reinterpret_cast<float*>(payload);
    const uint64_t seed = Combine(spec.RowSeed(id.id), static_cast<uint64_t>(update_.step));
    const float* latest = LatestOf(id);
    const float* rate = update_.learning_rates.data() + first_rate_[id.table_place];
    for (const Segment& segment : spec.segments()) {
      const float* own = gradient + segment.first_dim;
      if (segment.compressor->quantises_training()) {
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
    const int64_t row = plan_.order[plan_.starts[id.place]] - plan_.table_splits[id.table_place];
    return update_.latest.data() + first_value_[id.table_place] + row * id.table.spec.dim();
  }

  uint32_t NewestTimeOf(int64_t place) const {
    uint32_t newest = 0;
    for (int32_t k = plan_.starts[place]; k < plan_.starts[place + 1]; ++k) {
      newest = std::max(newest, times_.Of(plan_.order[k]));
      if (times_.single()) break;
    }
    return newest;
  }

  // For this thread: the summed gradient, the adjusted one, and the payload of a new row.
  float* Scratch() const {
    thread_local std::vector<float> scratch;
    const size_t size = 2 * static_cast<size_t>(max_dim_) + max_row_bytes_ / sizeof(float);
    if (scratch.size() < size) scratch.resize(size);
    return scratch.data();
  }

  static constexpr int kAhead = 8;

  Group& group_;
  const Plan& plan_;
  const Update& update_;
  const Times times_;
  std::vector<Table*> tables_;
  std::vector<int64_t> first_value_;   // of each table, in gradients per input
  std::vector<int64_t> unique_value_;  // of each cell, in gradients per unique id
  std::vector<int> first_rate_;
  int max_dim_ = 0;  // rounded up, so that what follows in scratch memory is aligned
  size_t max_row_bytes_ = 0;
};

Applied Group::Apply(const Plan& plan, const Update& update) {
  Gate::Shared call(gate_);
  return Applier(*this, plan, update).Run();
}

}  // namespace monolith
