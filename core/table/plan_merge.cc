#include "table/plan_merge.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/process_key.h"
#include "base/thread_pool.h"
#include "table/id_checks.h"
#include "table/plan_parts.h"

namespace monolith {
namespace {

constexpr int64_t kIdsPerTask = 4096;  // below this, waking another thread costs more than it saves
constexpr int kBucketsPerTask = 32;

// The distinct ids of one source, and their counts.
struct Input {
  const int64_t* keys = nullptr;
  const Plan* plan = nullptr;  // null: the ids were received as a part
  std::span<const int32_t> counts;

  bool is_part() const { return plan == nullptr; }
  bool has_counts() const { return is_part() ? !counts.empty() : plan->counts.size() != 0; }
  int32_t CountOf(int64_t key) const {
    if (plan != nullptr) return plan->CountOf(key);
    return counts.empty() ? 1 : counts[key];
  }
};

// Numbers the ids of one cell in order of arrival: 0, 1, 2, ... Owned by one thread, used for cell after cell.
class CellNumbers {
 public:
  // `size`: upper bound of the number of ids. They are written to `ids`.
  void Begin(uint32_t size, int64_t* ids) {
    bits_ = std::bit_width(size) + 2;  // sparse: probing further costs more than clearing the slots
    const size_t slots = size_t{1} << bits_;
    if (slots_.size() < slots) {
      slots_.resize(slots);
      seen_.resize(slots / 4);  // more than `size`
      first_slots_.resize(slots / 4);
    }
    std::memset(slots_.data(), 0, slots * sizeof(uint32_t));
    ids_ = ids;
    count_ = 0;
  }

  // Numbers the ids of one source. Calls belongs(id), which throws for an id that must not occur here, with the value
  // that it numbers: memory of the caller is read once. Throws kInvalidArgument for an id that occurs twice.
  template <typename Belongs>
  void Number(std::span<const int64_t> given, uint32_t source, const Belongs& belongs, int32_t* numbers) {
    // In a separate loop without branches: the hashes of many ids are in flight here.
    const int shift = 64 - bits_;
    int64_t* ids = ids_ + count_;  // bounded by the ids that are still to come
    uint32_t* first_slots = first_slots_.data();
    for (size_t j = 0; j < given.size(); ++j) {
      ids[j] = given[j];
      first_slots[j] = static_cast<uint32_t>(HashInProcess(static_cast<uint64_t>(ids[j])) >> shift);
    }
    belongs(std::span<const int64_t>(ids, given.size()));
    const uint32_t mask = (uint32_t{1} << bits_) - 1;
    uint32_t *slots = slots_.data(), *seen = seen_.data(), count = count_;
    for (size_t j = 0; j < given.size(); ++j) {
      const int64_t id = ids[j];
      uint32_t slot = first_slots[j];
      while (slots[slot] != 0 && ids_[slots[slot] - 1] != id) slot = (slot + 1) & mask;
      uint32_t number = slots[slot] - 1;
      if (slots[slot] == 0) {
        number = count++;
        slots[slot] = count;
        ids_[number] = id;
      } else if (seen[number] == source) [[unlikely]] {
        RefuseIds("id " + std::to_string(id) + " comes twice");
      }
      seen[number] = source;
      numbers[j] = static_cast<int32_t>(number);
    }
    count_ = count;
  }
  uint32_t count() const { return count_; }

 private:
  std::vector<uint32_t> slots_;        // open addressing: number + 1, 0 = empty
  std::vector<uint32_t> seen_;         // source that last had each number
  std::vector<uint32_t> first_slots_;  // first slot to probe for each id of a source
  int64_t* ids_ = nullptr;
  int bits_ = 0;
  uint32_t count_ = 0;
};

// Calls `call` and adds the number of the part to the error it throws.
template <typename Call>
void OfPart(size_t number, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    throw Error(error.code(), "part " + std::to_string(number) + ": " + error.what());
  }
}

class Merger {
 public:
  Merger(std::vector<Input> inputs, MergedPlans merged, bool has_buckets, std::span<const uint8_t> has_wide)
      : inputs_(std::move(inputs)), merged_(std::move(merged)), has_wide_(has_wide) {
    num_tables_ = merged_.dims.size();
    num_cells_ = kNumBuckets * num_tables_;
    uint64_t total = 0;
    for (const MergedSource& source : merged_.sources) total += static_cast<uint64_t>(source.num_keys());
    CheckCount(total);
    num_tasks_ = static_cast<int64_t>(total) < kIdsPerTask ? 1 : kNumBuckets / kBucketsPerTask;
    merged_.plan.num_tables = static_cast<int>(num_tables_);
    has_buckets_ = has_buckets;
    keys_ = Buffer<int64_t>(total);
    for (const Input& input : inputs_) has_counts_ |= input.has_counts();
  }

  MergedPlans Make() {
    cell_sizes_ = Buffer<uint32_t>(num_cells_);
    ForCells([this](size_t begin, size_t end) {
      thread_local CellNumbers numbers;
      for (size_t cell = begin; cell < end; ++cell) cell_sizes_[cell] = NumberCell(numbers, cell);
    });
    Plan& plan = merged_.plan;
    plan.splits = Buffer<int64_t>(num_cells_ + 1);
    int64_t total = 0;
    for (size_t cell = 0; cell < num_cells_; ++cell) {
      plan.splits[cell] = total;
      total += cell_sizes_[cell];
    }
    plan.splits[num_cells_] = total;
    plan.unique = Buffer<int64_t>(total);
    if (has_buckets_) plan.buckets = Buffer<uint16_t>(total);
    if (has_counts_) plan.counts = Buffer<int32_t>(total);
    ForCells([this](size_t begin, size_t end) {
      for (size_t cell = begin; cell < end; ++cell) PlaceCell(cell);
    });
    LayOutValues();
    return std::move(merged_);
  }

 private:
  template <typename Body>
  void ForCells(Body&& body) const {
    const size_t cells_per_task = num_cells_ / num_tasks_;
    ParallelFor(num_tasks_, [&](int task) { body(task * cells_per_task, (task + 1) * cells_per_task); });
  }

  // Provisional offset of the ids of a cell, used before the sizes of the cells before it are known.
  int64_t RoomOf(size_t cell) const {
    int64_t begin = 0;
    for (const MergedSource& source : merged_.sources) begin += source.splits[cell];
    return begin;
  }

  // Numbers the distinct ids of the cell; returns their number.
  uint32_t NumberCell(CellNumbers& numbers, size_t cell) {
    const int64_t begin = RoomOf(cell), size = RoomOf(cell + 1) - begin;
    if (size == 0) return 0;
    numbers.Begin(static_cast<uint32_t>(size), keys_.data() + begin);
    for (size_t r = 0; r < inputs_.size(); ++r) {
      const int64_t first = merged_.sources[r].splits[cell], count = merged_.sources[r].splits[cell + 1] - first;
      if (count == 0) continue;
      const std::span<const int64_t> ids(inputs_[r].keys + first, static_cast<size_t>(count));
      int32_t* places = merged_.sources[r].places.data() + first;
      if (!inputs_[r].is_part()) {
        numbers.Number(ids, static_cast<uint32_t>(r), [](std::span<const int64_t>) {}, places);
        continue;
      }
      OfPart(r, [&] {
        const auto belongs = [&](std::span<const int64_t> read) { RequireBucket(read, cell); };
        numbers.Number(ids, static_cast<uint32_t>(r), belongs, places);
      });
    }
    return numbers.count();
  }

  void RequireBucket(std::span<const int64_t> ids, size_t cell) const {
    const auto bucket = static_cast<uint32_t>(cell / num_tables_);
    const bool may_be_wide = has_wide_[cell % num_tables_] != 0;
    bool all = true;
    for (const int64_t id : ids) all &= BelongsTo(bucket, id, may_be_wide);
    if (all) [[likely]]
      return;
    for (const int64_t id : ids) {
      if (!BelongsTo(bucket, id, may_be_wide)) RefuseBucket(id, bucket);
    }
  }

  // Converts the numbers inside the cell to indices in the plan.
  void PlaceCell(size_t cell) {
    Plan& plan = merged_.plan;
    const int64_t first = plan.splits[cell], size = plan.splits[cell + 1] - first;
    if (size == 0) return;
    std::copy_n(keys_.data() + RoomOf(cell), size, plan.unique.data() + first);
    if (has_buckets_) std::fill_n(plan.buckets.data() + first, size, static_cast<uint16_t>(cell / num_tables_));
    if (has_counts_) std::fill_n(plan.counts.data() + first, size, 0);
    for (size_t r = 0; r < inputs_.size(); ++r) {
      MergedSource& source = merged_.sources[r];
      for (int64_t j = source.splits[cell]; j < source.splits[cell + 1]; ++j)
        source.places[j] += static_cast<int32_t>(first);
      if (has_counts_) OfPart(r, [&] { AddCounts(r, cell); });
    }
  }

  void AddCounts(size_t r, size_t cell) {
    const MergedSource& source = merged_.sources[r];
    for (int64_t j = source.splits[cell]; j < source.splits[cell + 1]; ++j) {
      const int32_t count = inputs_[r].CountOf(j);
      if (count < 1) [[unlikely]]
        RefuseCount();
      int32_t& sum = merged_.plan.counts[source.places[j]];
      // Other processes may send any counts: the sum saturates.
      sum = static_cast<int32_t>(std::min<int64_t>(int64_t{sum} + count, std::numeric_limits<int32_t>::max()));
    }
  }

  void LayOutValues() {
    merged_.first_values = FirstValues(merged_.plan.splits);
    for (MergedSource& source : merged_.sources) source.first_values = FirstValues(source.splits);
  }

  Buffer<int64_t> FirstValues(const Buffer<int64_t>& splits) const {
    Buffer<int64_t> first(kNumBuckets + 1);
    int64_t values = 0;
    for (size_t bucket = 0, cell = 0; bucket < kNumBuckets; ++bucket) {
      first[bucket] = values;
      for (size_t table = 0; table < num_tables_; ++table, ++cell)
        values += (splits[cell + 1] - splits[cell]) * merged_.dims[table];
    }
    first[kNumBuckets] = values;
    return first;
  }

  const std::vector<Input> inputs_;
  MergedPlans merged_;
  const std::span<const uint8_t> has_wide_;  // of the tables, if ids came from other processes
  size_t num_tables_, num_cells_;
  int num_tasks_;
  bool has_buckets_, has_counts_ = false;
  Buffer<int64_t> keys_;         // distinct ids of each cell, from RoomOf(cell) on
  Buffer<uint32_t> cell_sizes_;  // [cells]
};

// The inputs of all plans end to end: table by table, and inside a table source by source.
class InputLinker {
 public:
  InputLinker(std::span<const Plan* const> plans, MergedPlans& merged)
      : plans_(plans), merged_(merged), plan_(merged.plan), num_tables_(merged.dims.size()) {
    plan_.table_splits.assign(num_tables_ + 1, 0);
    shifts_.resize(plans.size() * num_tables_);
    int64_t next = 0;
    for (size_t table = 0; table < num_tables_; ++table) {
      for (size_t r = 0; r < plans.size(); ++r) {
        const std::vector<int64_t>& splits = plans[r]->table_splits;
        shifts_[r * num_tables_ + table] = next - splits[table];
        next += splits[table + 1] - splits[table];
      }
      plan_.table_splits[table + 1] = next;
    }
    CheckCount(static_cast<uint64_t>(next));
    plan_.starts = Buffer<int32_t>(plan_.unique.size() + 1);
    plan_.starts[plan_.unique.size()] = static_cast<int32_t>(next);
    plan_.order = Buffer<int32_t>(static_cast<size_t>(next));
    plan_.inverse = Buffer<int32_t>(static_cast<size_t>(next));
  }

  void Link() {
    const int tasks = plan_.num_ids() < kIdsPerTask ? 1 : kNumBuckets / kBucketsPerTask;
    const size_t cells_per_task = kNumBuckets * num_tables_ / tasks;
    ParallelFor(tasks, [&](int task) {
      for (size_t cell = task * cells_per_task; cell < (task + 1) * cells_per_task; ++cell) LinkCell(cell);
    });
  }

 private:
  void LinkCell(size_t cell) {
    thread_local std::vector<int32_t> next;  // destination of the next occurrence of each id of the cell
    const int64_t first = plan_.splits[cell], size = plan_.splits[cell + 1] - first;
    if (size == 0) return;
    next.assign(static_cast<size_t>(size), 0);
    int32_t start = 0;
    for (size_t r = 0; r < plans_.size(); ++r) {
      const Plan& source = *plans_[r];
      start += source.starts[source.splits[cell]];
      for (int64_t key = source.splits[cell]; key < source.splits[cell + 1]; ++key)
        next[merged_.sources[r].places[key] - first] += source.starts[key + 1] - source.starts[key];
    }
    for (int64_t number = 0; number < size; ++number) {
      plan_.starts[first + number] = start;
      start += std::exchange(next[number], start);
    }
    for (size_t r = 0; r < plans_.size(); ++r) LinkSource(r, cell, first, next.data());
  }

  void LinkSource(size_t r, size_t cell, int64_t first, int32_t* next) {
    const Plan& source = *plans_[r];
    const int64_t shift = shifts_[r * num_tables_ + cell % num_tables_];
    for (int64_t key = source.splits[cell]; key < source.splits[cell + 1]; ++key) {
      const int32_t place = merged_.sources[r].places[key];
      for (int32_t k = source.starts[key]; k < source.starts[key + 1]; ++k) {
        const auto position = static_cast<int32_t>(source.order[k] + shift);
        plan_.order[next[place - first]++] = position;
        plan_.inverse[position] = place;
      }
    }
  }

  const std::span<const Plan* const> plans_;
  MergedPlans& merged_;
  Plan& plan_;
  const size_t num_tables_;
  std::vector<int64_t> shifts_;  // [source][table]: from a position in its input to that in the merged input
};

void RequireMergeable(std::span<const Plan* const> plans) {
  if (plans.empty()) throw Error(Code::kInvalidArgument, "expected one plan or more to merge, got none");
  for (const Plan* plan : plans) {
    if (!plan->deduplicated)
      throw Error(Code::kInvalidArgument,
                  "only plans that have each id once can be merged, got one that keeps "
                  "repeated ids apart");
    if (plan->num_tables != plans[0]->num_tables || plan->only_table != plans[0]->only_table)
      throw Error(Code::kInvalidArgument, "plans of the same tables can be merged, got some of others");
  }
}

MergedSource SourceOf(const Plan& plan) {
  MergedSource source;
  source.table_splits = plan.table_splits;
  source.splits = Buffer<int64_t>(plan.splits.size());
  std::copy_n(plan.splits.data(), plan.splits.size(), source.splits.data());
  source.places = Buffer<int32_t>(plan.unique.size());
  return source;
}

}  // namespace

const MergedSource& MergedPlans::source(int64_t number) const {
  if (number < 0 || number >= static_cast<int64_t>(sources.size())) {
    throw Error(Code::kInvalidArgument, "the number of a source must be in [0, " + std::to_string(sources.size()) +
                                            "), got " + std::to_string(number));
  }
  return sources[static_cast<size_t>(number)];
}

MergedPlans MergePlans(std::span<const Plan* const> plans, std::vector<int> dims) {
  RequireMergeable(plans);
  CheckSize("dims", dims.size(), plans[0]->num_tables);
  MergedPlans merged;
  merged.dims = std::move(dims);
  merged.plan.only_table = plans[0]->only_table;
  std::vector<Input> inputs;
  bool has_buckets = false;
  for (const Plan* plan : plans) {
    inputs.push_back({plan->unique.data(), plan, {}});
    merged.sources.push_back(SourceOf(*plan));
    has_buckets |= plan->buckets.size() != 0;
  }
  merged = Merger(std::move(inputs), std::move(merged), has_buckets, {}).Make();
  InputLinker(plans, merged).Link();
  return merged;
}

MergedPlans MergeParts(std::span<const int64_t> words, std::span<const int64_t> num_words, std::vector<int> dims,
                       std::span<const uint8_t> has_wide, BucketRange buckets) {
  CheckSize("has_wide", has_wide.size(), static_cast<int64_t>(dims.size()));
  CheckLengths(num_words, words.size());
  MergedPlans merged;
  merged.dims = std::move(dims);
  std::vector<Input> inputs;
  size_t next = 0;
  for (size_t r = 0; r < num_words.size(); ++r) {
    OfPart(r, [&] {
      const ReadPart part = ReadPartOf(words.subspan(next, static_cast<size_t>(num_words[r])));
      MergedSource source;
      source.splits = SplitsOf(part.cells, part.keys.size(), has_wide.size(), buckets);
      source.places = Buffer<int32_t>(part.keys.size());
      merged.sources.push_back(std::move(source));
      inputs.push_back({part.keys.data(), nullptr, part.counts});
    });
    next += static_cast<size_t>(num_words[r]);
  }
  const bool has_buckets = std::any_of(has_wide.begin(), has_wide.end(), [](uint8_t wide) { return wide != 0; });
  merged = Merger(std::move(inputs), std::move(merged), has_buckets, has_wide).Make();
  LinkDistinct(merged.plan);
  return merged;
}

}  // namespace monolith
