#include "device/device_group.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "base/process_key.h"
#include "device/prefix_sums.h"

namespace monolith::device {
namespace {

[[noreturn]] void Refuse(const std::string& message) { throw Error(Code::kInvalidArgument, message); }

void RequireSupported(const TableSpec& spec) {
  if (spec.serving) {
    Refuse("table '" + spec.name + "' is a serving table: rows on a device are those of training; serve what a run" +
           " exports or publishes");
  }
}

std::vector<uint32_t> DimsOf(const Group& host) {
  std::vector<uint32_t> dims;
  for (int t = 0; t < host.num_tables(); ++t) dims.push_back(static_cast<uint32_t>(host.table(t).spec.dim()));
  return dims;
}

// Scratch memory, at most, of the part of an update that changes rows.
size_t BytesToLearn(uint64_t num_values, const DevicePlan& plan, const DeviceUpdate& update) {
  const size_t tables = plan.num_ids.size();
  const size_t of_ids = size_t{plan.num_unique()} * 4 * sizeof(uint32_t);
  const size_t of_tables = tables * (kNumBuckets * sizeof(int32_t) + 4 * Scratch::kBoundary);
  const size_t numbers = num_values + update.learning_rates.size() + update.times.size();
  return of_ids + of_tables + numbers * sizeof(float) + 32 * Scratch::kBoundary;
}

}  // namespace

DeviceGroup::DeviceGroup(Group& host, std::shared_ptr<Launcher> launcher, const DeviceGroupConfig& config)
    : host_(host),
      launcher_(std::move(launcher)),
      config_(config),
      rules_(host),
      dims_(*launcher_, static_cast<size_t>(host.num_tables())),
      rule_bytes_(*launcher_, rules_.bytes().size()),
      chunks_(*launcher_, config.sizes.slab_bytes),
      scratch_(*launcher_),
      views_(*launcher_, static_cast<size_t>(host.num_tables())),
      counters_(*launcher_, static_cast<size_t>(host.num_tables())),
      images_(*launcher_, config.stream, host) {
  for (int t = 0; t < host.num_tables(); ++t) {
    const TableSpec& spec = host.table(t).spec;
    RequireSupported(spec);
    max_dim_ = std::max(max_dim_, static_cast<uint32_t>(spec.dim()));
    dims_have_packs_ = dims_have_packs_ && spec.dim() % 4 == 0;
    tables_.push_back(std::make_unique<DeviceTable>(*launcher_, config.stream, chunks_,
                                                    static_cast<uint32_t>(spec.payload_bytes()),
                                                    !spec.wide_slots().empty(), config.sizes));
  }
  host_.KeepRowsElsewhere();
  const std::vector<uint32_t> dims = DimsOf(host);
  launcher_->Copy(dims_.data(), dims.data(), dims.size() * sizeof(uint32_t), config.stream);
  launcher_->Copy(rule_bytes_.data(), rules_.bytes().data(), rules_.bytes().size(), config.stream);
  MutexLock lock(mutex_);
  CreateTables(NewIndices());
}

DeviceGroup::~DeviceGroup() = default;

std::vector<DeviceTable::EmptyIndex> DeviceGroup::NewIndices() {
  std::vector<DeviceTable::EmptyIndex> indices;
  for (const auto& table : tables_) indices.push_back(table->NewIndex());
  return indices;
}

void DeviceGroup::CreateTables(std::vector<DeviceTable::EmptyIndex> indices) {
  Wait();
  chunks_.Clear();
  launcher_->Fill(reinterpret_cast<uint32_t*>(counters_.data()), 0, counters_.size() * sizeof(TableCounters) / 4,
                  config_.stream);
  for (size_t t = 0; t < tables_.size(); ++t) tables_[t]->Create(std::move(indices[t]), counters_.data() + t);
}

Tables DeviceGroup::TablesNow(uint32_t first) {
  const auto is_changed = [](const auto& table) { return table->is_view_changed; };
  if (std::any_of(tables_.begin(), tables_.end(), is_changed)) {
    std::vector<TableView> views;
    for (auto& table : tables_) {
      views.push_back(table->view());
      table->is_view_changed = false;
    }
    launcher_->Copy(views_.data(), views.data(), views.size() * sizeof(TableView), config_.stream);
  }
  return {views_.data() + first, kProcessKey};
}

void DeviceGroup::ReadCounters() {
  std::vector<TableCounters> counters(tables_.size());
  CopyToHost(counters.data(), counters_.data(), counters.size());
  Wait();
  for (size_t t = 0; t < tables_.size(); ++t) tables_[t]->SetCounters(counters[t]);
}

void DeviceGroup::FollowEpochBase(const Group::RowEpochs& before) {
  const uint64_t base = host_.row_epochs().base;
  if (base == before.base) return;
  const EpochShift shift{static_cast<uint32_t>(base - before.base), before.cut_is_open ? before.cut_epoch : UINT32_MAX};
  const Tables tables = TablesNow();
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    const ShiftEpochs kernel{tables, t, tables_[t]->num_numbers(), shift};
    Launch(kernel.NumThreads(), kernel);
  }
  images_.ShiftEpochs(shift);
}

DeviceGroup::Batch DeviceGroup::BatchOf(const DevicePlan& plan) {
  const auto num_tables = static_cast<uint32_t>(plan.num_ids.size());
  uint64_t num_values = 0;
  for (size_t t = 0; t < num_tables; ++t)
    num_values += uint64_t{plan.num_ids[t]} * static_cast<uint64_t>(SpecOf(t).dim());
  const DistinctIds ids{plan.num_unique(), num_tables, plan.keys, plan.cells};
  const ValueLayout layout{static_cast<uint32_t>(SpecOf(0).dim()), num_tables == 1 ? nullptr : dims_.data(),
                           plan.offsets};
  return {plan, {0, ids, TablesNow(), layout, plan.rows}, num_values};
}

NewRanks DeviceGroup::Insert(const Batch& batch, int32_t* is_new, const uint32_t* refused) {
  const DistinctIds& ids = batch.plan.ids;
  InclusiveSums(*launcher_, scratch_, config_.stream, is_new, ids.count, is_new);
  NewRanks ranks{is_new, nullptr, nullptr};
  if (ids.num_tables > 1) {
    const uint32_t num_cells = ids.num_tables * kNumBuckets;
    ranks.splits = batch.given.splits;
    int32_t* sums = scratch_.Take<int32_t>(num_cells);
    Launch(num_cells, CountNewInCells{ids.num_tables, ranks.splits, is_new, sums});
    for (uint32_t t = 0; t < ids.num_tables; ++t) {
      int32_t* own = sums + uint64_t{t} * kNumBuckets;
      InclusiveSums(*launcher_, scratch_, config_.stream, own, kNumBuckets, own);
    }
    ranks.sums = sums;
  }
  Launch(ids.count, InsertRows{ids, batch.plan.tables, ranks, refused, epoch_, batch.given.rows});
  Launch(ids.num_tables, CountInserted{ids, batch.plan.tables, ranks, refused});
  return ranks;
}

void DeviceGroup::Gather(const Batch& batch, float* values) {
  const RowsOfPlan& plan = batch.plan;
  const auto launch = [&]<int kWidth>() {
    const uint32_t lane_bits = LaneBitsFor((max_dim_ + kWidth - 1) / kWidth);
    Launch(uint64_t{plan.ids.count} << lane_bits,
           GatherRows<kWidth>{plan.ids, plan.tables, plan.layout, lane_bits, plan.rows, values});
  };
  const bool has_packs = dims_have_packs_ && reinterpret_cast<uintptr_t>(values) % sizeof(Pack<4>) == 0;
  has_packs ? launch.template operator()<4>() : launch.template operator()<1>();
}

void DeviceGroup::Read(DevicePlan& plan, float* values, int64_t step) {
  MutexLock lock(mutex_);
  FinishEviction();
  Begin();
  const Batch batch = BatchOf(plan);
  Launch(batch.plan.ids.count, FindRows{batch.plan.ids, batch.plan.tables, plan.rows});
  plan.has_rows = true;
  Gather(batch, values);
  rules_.Retrieve(*launcher_, config_.stream, rule_bytes_.data(), batch.plan, step, values);
}

void DeviceGroup::CheckUpdate(const DevicePlan& plan, const DeviceUpdate& update) const {
  if (update.step < 0) Refuse("step must be >= 0, got " + std::to_string(update.step));
  if (static_cast<int>(update.learning_rates.size()) != host_.num_learning_rates()) {
    Refuse("expected " + std::to_string(host_.num_learning_rates()) + " learning rates, one for each segment, got " +
           std::to_string(update.learning_rates.size()));
  }
  for (const float rate : update.learning_rates) {
    if (!(std::isfinite(rate) && rate >= 0.0f)) {
      Refuse("learning rates must be finite and >= 0, got " + std::to_string(rate));
    }
  }
  const Times times(update.times, plan.num_occurrences());  // throws for a time out of range
}

Applied DeviceGroup::Apply(const DevicePlan& plan, const DeviceUpdate& update, std::span<const Push> pushes) {
  CheckUpdate(plan, update);
  MutexLock lock(mutex_);
  FinishEviction();
  epoch_ = host_.row_epochs().now;  // before the turns, inside of which the gate of the host group is not to be entered
  Applied applied;
  {
    WorkerClocks::Turns turns = host_.TakeTurns(pushes);
    if (turns.are_duplicates()) return {.duplicate = true};
    applied = Learn(plan, update);
    turns.Record();
  }
  evicts_from_ = host_.NewestTime(-1);
  RaiseNewestTimes(plan, update.times);
  EvictDue();
  return applied;
}

Applied DeviceGroup::Learn(const DevicePlan& plan, const DeviceUpdate& update) {
  Begin();
  for (uint32_t t = 0; t < plan.num_ids.size(); ++t) tables_[t]->Reserve(t, TablesNow(), plan.num_ids[t]);
  const Batch batch = BatchOf(plan);
  const DistinctIds& ids = batch.plan.ids;
  if (plan.has_rows) {
    Launch(ids.count, FindRowsAgain{ids, batch.plan.tables, plan.rows});
  } else {
    Launch(ids.count, FindRows{ids, batch.plan.tables, plan.rows});
  }
  auto* outcome = Zeros<Outcome>(1);
  launcher_->Fill(&outcome->first_refused, kNoPlace, 1, config_.stream);
  auto* is_missing = scratch_.Take<int32_t>(ids.count);
  Launch(ids.count, FlagMissing{ids.count, plan.rows, is_missing});
  const float* gradients = Check(batch, update, is_missing, outcome);
  images_.MakeRoom(plan.num_ids);
  scratch_.Reserve(BytesToLearn(batch.num_values, plan, update));  // from here on nothing can fail
  const int64_t filtered = AdmitNew(batch, is_missing, outcome, update.step);
  images_.Keep(scratch_, batch.plan.tables, RowsOfIds(ids, plan.rows), &outcome->refused);
  const NewRanks ranks = Insert(batch, is_missing, &outcome->refused);
  Step(batch, update, gradients, ranks, &outcome->refused);
  Stamp(batch, update.times, ranks, outcome);
  const Outcome result = ReadOutcome(batch, outcome);
  ReadCounters();
  return {.updated = result.counts.updated,
          .inserted = result.counts.inserted,
          .filtered = filtered,
          .skipped = result.counts.skipped};
}

const float* DeviceGroup::Check(const Batch& batch, const DeviceUpdate& update, int32_t* is_missing, Outcome* outcome) {
  if (update.known_finite && update.scale == 1.0f) return update.gradients;
  const uint32_t lane_bits = rules_.lane_bits();
  float* scaled = update.scale == 1.0f ? nullptr : scratch_.Take<float>(batch.num_values);
  Launch(uint64_t{batch.plan.ids.count} << lane_bits,
         CheckGradients{batch.plan.ids, batch.plan.layout, rules_.traits(rule_bytes_.data()), lane_bits,
                        update.gradients, update.scale, scaled, &outcome->refused, &outcome->first_refused,
                        batch.given.rows, is_missing, &outcome->counts});
  return scaled == nullptr ? update.gradients : scaled;
}

void DeviceGroup::Step(const Batch& batch, const DeviceUpdate& update, const float* gradients, const NewRanks& ranks,
                       const uint32_t* refused) {
  float* adjusted = rules_.adjusts_gradients() ? scratch_.Take<float>(batch.num_values) : nullptr;
  const float* rates = scratch_.Upload(update.learning_rates, config_.stream);
  rules_.Learn(*launcher_, config_.stream, rule_bytes_.data(), batch.plan,
               {ranks, gradients, adjusted, update.latest, rates, update.step, refused});
}

void DeviceGroup::Stamp(const Batch& batch, std::span<const int64_t> times, const NewRanks& ranks, Outcome* outcome) {
  const RowsOfPlan& plan = batch.plan;
  uint32_t* newest = nullptr;
  if (times.size() != 1) {
    const std::vector<uint32_t> short_times(times.begin(), times.end());
    newest = Zeros<uint32_t>(plan.ids.count);
    const uint32_t* given = scratch_.Upload(std::span<const uint32_t>(short_times), config_.stream);
    Launch(times.size(), NewestTimesOfIds{static_cast<uint32_t>(times.size()), given, batch.given.inverse, newest});
  }
  const auto single = newest == nullptr ? static_cast<uint32_t>(times[0]) : 0u;
  const StampRows kernel{plan.ids, plan.tables,       ranks,           batch.given.rows, newest, single,
                         epoch_,   &outcome->refused, &outcome->counts};
  launcher_->LaunchBlocks(BlocksForCounting(*launcher_, plan.ids.count), kernel, config_.stream);
}

// Admission decides on the host, in the order of the plan, as the filters' state depends on it.
int64_t DeviceGroup::AdmitNew(const Batch& batch, int32_t* is_missing, const Outcome* outcome, int64_t step) {
  if (!host_.has_admission()) return 0;
  const DistinctIds& ids = batch.plan.ids;
  std::vector<int32_t> missing(ids.count), cells(ids.count), counts(ids.count);
  std::vector<int64_t> keys(ids.count);
  CopyToHost(missing.data(), is_missing, missing.size());
  CopyToHost(cells.data(), ids.cells, cells.size());
  CopyToHost(counts.data(), batch.given.counts, counts.size());
  CopyToHost(keys.data(), ids.keys, keys.size());
  ReadOutcome(batch, outcome);  // a refused update counts no id
  std::vector<Group::NewId> news;
  std::vector<uint32_t> places;
  for (uint32_t place = 0; place < ids.count; ++place) {
    if (missing[place] == 0) continue;
    const auto cell = static_cast<uint32_t>(cells[place]);
    news.push_back({keys[place], cell / ids.num_tables, cell % ids.num_tables, static_cast<uint32_t>(counts[place])});
    places.push_back(place);
  }
  const std::vector<uint8_t> admitted = host_.Admit(news, step);
  for (size_t i = 0; i < places.size(); ++i) missing[places[i]] = admitted[i];
  launcher_->Copy(is_missing, missing.data(), missing.size() * sizeof(int32_t), config_.stream);
  return std::count(admitted.begin(), admitted.end(), 0);
}

DeviceGroup::Outcome DeviceGroup::ReadOutcome(const Batch& batch, const Outcome* outcome) {
  Outcome result;
  CopyToHost(&result, outcome, 1);
  Wait();
  if (result.refused != 0) RefuseNonFinite(batch, result.first_refused);
  return result;
}

void DeviceGroup::RefuseNonFinite(const Batch& batch, uint32_t place) {
  int64_t key = 0;
  int32_t cell = 0;
  CopyToHost(&key, batch.plan.ids.keys + place, 1);
  CopyToHost(&cell, batch.plan.ids.cells + place, 1);
  Wait();
  const auto table = static_cast<uint32_t>(cell) % batch.plan.ids.num_tables;
  Refuse("table '" + SpecOf(table).name + "': the gradient of id " + std::to_string(key) +
         " is not finite; nothing was applied. Set nonfinite='skip' or 'apply' in the table's config to continue");
}

void DeviceGroup::RaiseNewestTimes(const DevicePlan& plan, std::span<const int64_t> given_times) {
  const Times times(given_times, plan.num_occurrences());
  for (int t = 0; t < num_tables(); ++t) {
    const int64_t begin = plan.table_splits[t], end = plan.table_splits[t + 1];
    if (begin < end) host_.RaiseNewestTime(t, times.Newest(begin, end));
  }
}

void DeviceGroup::EvictDue() {
  try {
    FinishEviction();
  } catch (const Error& error) {
    if (error.code() != Code::kResourceExhausted) throw;
  }
}

// Can be repeated after an error: what it did is done.
void DeviceGroup::FinishEviction() {
  if (!evicts_from_) return;
  for (int t = 0; t < num_tables(); ++t) EnforceCap(t);
  const int64_t now = host_.NewestTime(-1);
  for (int t = 0; t < num_tables(); ++t) {
    const std::vector<uint32_t> buckets = host_.BucketsToEvict(t, *evicts_from_, now);
    if (!buckets.empty()) EvictExpired(t, now, buckets);
  }
  evicts_from_.reset();
}

}  // namespace monolith::device
