// The same tables in a Group and in a DeviceGroup, to which the same calls are made: results, errors and contents must
// be equal, bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/device_group.h"
#include "device/launchers_for_test.h"
#include "device/uploaded_plan_for_test.h"
#include "filter/admission_filter.h"
#include "table/cut.h"
#include "table/group.h"
#include "table/slot_keys.h"

namespace monolith::device {

// The content of blocks, whatever their order and the division into blocks.
struct BlocksContent {
  std::map<std::tuple<uint32_t, uint32_t, int64_t>, std::string> rows;   // table, bucket, key -> time, payload
  std::set<std::tuple<uint32_t, uint32_t, int64_t, uint32_t>> removals;  // ... and epoch
  std::map<uint32_t, std::string> filters;                               // by bucket
  std::set<std::tuple<BlockKind, uint32_t, uint64_t, uint32_t, uint64_t>> headers;  // of the blocks
  bool operator==(const BlocksContent&) const = default;

  void Add(const std::string& bytes) {
    const RowBlockView block(bytes);
    const RowBlockHeader& header = block.header();
    headers.insert({header.kind, header.table, header.digest, header.payload_bytes_per_row, header.epoch});
    if (header.kind == BlockKind::kFilter) filters[header.bucket] = block.payload_bytes();
    for (uint32_t i = 0; i < block.count(); ++i) {
      const std::tuple place(header.table, header.bucket, block.key(i));
      if (header.kind == BlockKind::kTombstone) {
        removals.insert(std::tuple_cat(place, std::tuple(block.time(i))));
        continue;
      }
      std::string text = std::to_string(block.time(i)) + " ";
      text.append(reinterpret_cast<const char*>(block.payload(i)), header.payload_bytes_per_row);
      EXPECT_TRUE(rows.insert({place, std::move(text)}).second) << "row of " << block.key(i) << " came twice";
    }
  }
};

inline BlocksContent ContentOf(BlockSource& source) {
  BlocksContent content;
  for (std::string block; source.Next(&block);) content.Add(block);
  return content;
}

// What differs first, for messages.
inline std::string DifferenceOf(const BlocksContent& expected, const BlocksContent& content) {
  std::string text = std::to_string(expected.rows.size()) + " rows, " + std::to_string(expected.removals.size()) +
                     " removals, " + std::to_string(expected.filters.size()) + " filters expected, got " +
                     std::to_string(content.rows.size()) + ", " + std::to_string(content.removals.size()) + ", " +
                     std::to_string(content.filters.size());
  for (const auto& [place, row] : expected.rows) {
    const auto found = content.rows.find(place);
    if (found != content.rows.end() && found->second == row) continue;
    return text + "; table " + std::to_string(std::get<0>(place)) + ", key " + std::to_string(std::get<2>(place)) +
           (found == content.rows.end() ? " is missing" : " has another row");
  }
  for (const auto& [place, row] : content.rows) {
    if (!expected.rows.contains(place)) return text + "; key " + std::to_string(std::get<2>(place)) + " is too many";
  }
  return text + (expected.headers == content.headers ? "" : "; other headers");
}

inline void ExpectSame(const BlocksContent& expected, const BlocksContent& content, const std::string& what) {
  EXPECT_TRUE(expected == content) << what << ": " << DifferenceOf(expected, content);
}

// What a call returned, or its error, without the position, which only a Group has.
template <typename Call>
std::string ResultOf(const Call& call) {
  try {
    return call();
  } catch (const Error& error) {
    std::string text = error.what();
    const size_t begin = text.find(" (position "), end = text.find(')', begin);
    if (begin != std::string::npos) text.erase(begin, end + 1 - begin);
    return "error " + std::to_string(static_cast<int>(error.code())) + ": " + text;
  }
}

class TwinGroups {
 public:
  using MakeGroup = std::function<std::unique_ptr<Group>()>;

  TwinGroups(std::shared_ptr<Launcher> launcher, const MakeGroup& make_group, const TableSizes& sizes)
      : group(make_group()),
        launcher_(std::move(launcher)),
        host_(make_group()),
        device(*host_, launcher_, {Stream{}, sizes}) {}

  // Makes the same call to both, which returns text; returns what the group answered.
  template <typename Call>
  std::string Same(const std::string& what, const Call& call) {
    const std::string expected = ResultOf([&] { return call(*group); });
    EXPECT_EQ(ResultOf([&] { return call(device); }), expected) << what;
    return expected;
  }

  // Ids of one optimizer step.
  struct Batch {
    std::vector<int64_t> keys, splits;
    std::vector<uint16_t> buckets;
    std::vector<int64_t> times;  // of each position
    int64_t step = 0;
    float scale = 1.0f;
    bool reads_first = false;  // the update is of a plan that was read
  };
  Plan PlanOf(const Batch& batch) const { return group->NewPlan(batch.keys, batch.splits, true, batch.buckets); }

  std::string Apply(const Batch& batch, const std::vector<float>& gradients, std::span<const Push> pushes = {}) {
    const std::string expected = ApplyOnGroup(batch, gradients, pushes);
    EXPECT_EQ(ApplyOnDevice(batch, gradients, pushes), expected) << "apply of step " << batch.step;
    return expected;
  }
  std::string ApplyOnGroup(const Batch& batch, const std::vector<float>& gradients, std::span<const Push> pushes = {}) {
    const std::vector<float> rates(static_cast<size_t>(group->num_learning_rates()), 0.25f);
    const Plan plan = PlanOf(batch);
    return ResultOf([&] {
      Update update;
      update.gradients = gradients;
      update.per_unique = true;
      update.learning_rates = rates;
      update.step = batch.step;
      update.times = batch.times;
      update.scale = batch.scale;
      return TextOf(group->Apply(plan, update, pushes));
    });
  }
  std::string ApplyOnDevice(const Batch& batch, const std::vector<float>& gradients,
                            std::span<const Push> pushes = {}) {
    const std::vector<float> rates(static_cast<size_t>(group->num_learning_rates()), 0.25f);
    const Shared<float> device_gradients(gradients.begin(), gradients.end());
    UploadedPlan uploaded(*launcher_, PlanOf(batch), Dims());
    if (batch.reads_first) ReadOnDevice(uploaded, batch);
    return ResultOf([&] {
      return TextOf(device.Apply(
          uploaded.plan, {device_gradients.data(), nullptr, rates, batch.step, batch.times, batch.scale}, pushes));
    });
  }

  void ExpectSameReads(const Batch& batch) {
    Plan plan = PlanOf(batch);
    std::vector<float> expected(static_cast<size_t>(group->NumValues(plan)));
    group->Read(plan, expected, batch.step);
    UploadedPlan uploaded(*launcher_, plan, Dims());
    const Shared<float> values = ReadOnDevice(uploaded, batch);
    EXPECT_TRUE(std::equal(values.begin(), values.end(), expected.begin())) << "reads of step " << batch.step;
  }

  // Rows with their state and times, removals and filters.
  void ExpectSameContent(const std::string& what) {
    ExpectSame(ContentOf(*group->Changes(0, 0, kNumBuckets, true)), ContentOf(*device.Changes(0, 0, kNumBuckets, true)),
               what);
    for (int table = 0; table < group->num_tables(); ++table) {
      const TableStats expected = group->Stats(table), stats = device.Stats(table);
      EXPECT_EQ(stats.rows, expected.rows) << what;
      EXPECT_EQ(stats.evicted, expected.evicted) << what;
      EXPECT_EQ(stats.tombstones, expected.tombstones) << what;
      EXPECT_EQ(host_->NewestTime(table), group->NewestTime(table)) << what;
      EXPECT_EQ(device.RowsBySlot(table), group->RowsBySlot(table)) << what;
    }
    EXPECT_EQ(host_->NewestTime(-1), group->NewestTime(-1)) << what;
    EXPECT_EQ(host_->Stamps(), group->Stamps()) << what;
  }

  static std::string TextOf(const Applied& applied) {
    return std::to_string(applied.updated) + " updated, " + std::to_string(applied.inserted) + " inserted, " +
           std::to_string(applied.filtered) + " filtered, " + std::to_string(applied.skipped) + " skipped" +
           (applied.duplicate ? ", duplicate" : "");
  }

  const std::unique_ptr<Group> group;

 private:
  std::vector<int> Dims() const {
    std::vector<int> dims;
    for (int table = 0; table < group->num_tables(); ++table) dims.push_back(group->table(table).spec.dim());
    return dims;
  }
  Shared<float> ReadOnDevice(UploadedPlan& uploaded, const Batch& batch) {
    Shared<float> values(static_cast<size_t>(group->NumValues(PlanOf(batch))), 7.0f);
    device.Read(uploaded.plan, values.data(), batch.step);
    return values;
  }

  const std::shared_ptr<Launcher> launcher_;
  const std::unique_ptr<Group> host_;

 public:
  DeviceGroup device;
  Group& host() { return *host_; }
};

// A cut of each, whose buckets are read range by range.
class TwinCuts {
 public:
  explicit TwinCuts(TwinGroups& twins) : expected_(twins.group->OpenCut()), cut_(twins.device.OpenCut()) {
    EXPECT_EQ(cut_->epoch(), expected_->epoch());
    EXPECT_EQ(cut_->counts(), expected_->counts());
    EXPECT_EQ(cut_->newest_times(), expected_->newest_times());
    EXPECT_EQ(cut_->stamps(), expected_->stamps());
  }

  // Reads as many of the buckets that are left; returns whether some are.
  bool ReadMore(uint32_t count, const CutOptions& options) {
    const uint32_t end = std::min<uint32_t>(next_ + count, kNumBuckets);
    ExpectSame(ContentOf(*expected_->Blocks(next_, end, options)), ContentOf(*cut_->Blocks(next_, end, options)),
               "cut, buckets from " + std::to_string(next_) + " to " + std::to_string(end));
    next_ = end;
    return end != kNumBuckets;
  }
  void Release() {
    expected_->Release();
    cut_->Release();
  }
  Cut& cut() { return *cut_; }

 private:
  const std::unique_ptr<Cut> expected_, cut_;
  uint32_t next_ = 0;
};

// Three tables: two segments and a filter; any int64 as an id, and expiry by buckets; a cap.
struct TablesOptions {
  int dim = 8;  // of the second one
  bool has_filter = false;
  uint64_t max_rows = 0;  // of the last one
  CapEviction cap_eviction = CapEviction::kLeastRecentlyUsed;
  uint32_t expire_days = 36500;
  int64_t evict_every_seconds = 0;
  uint32_t max_row_epoch = kMaxRowEpoch;
  NonFinite nonfinite = NonFinite::kRaise;
};

inline std::unique_ptr<Group> MakeThreeTables(const TablesOptions& options) {
  const std::map<std::string, double> plain = {{"stochastic_rounding", 0},
                                               {"delay_compensation_lambda", 0},
                                               {"weight_decay_factor", 0},
                                               {"use_nesterov", 0},
                                               {"momentum", 0.9},
                                               {"hessian_compression_times", 1},
                                               {"initial_accumulator_value", 0.1}};
  const Kernel uniform{"random_uniform", Params({{"minval", -0.5}, {"maxval", 0.75}})}, fp32{"fp32", Params()};
  const Kernel fixed{"fixed_r8", Params({{"r", 0.9}})};
  std::vector<TableSpec> specs;
  for (const char* name : {"a", "b", "c"}) {
    TableSpec& spec = specs.emplace_back(name);
    spec.seed = DigestOf(name);
    spec.nonfinite = options.nonfinite;
    spec.expire_days.Set(options.expire_days, {}, {});
    spec.evict_every_seconds = options.evict_every_seconds;
  }
  specs[0].AddSegment(3, uniform, {"adagrad", Params(plain)}, fp32);
  specs[0].AddSegment(4, uniform, {"sgd", Params(plain)}, fixed);
  if (options.has_filter) specs[0].min_counts.Set(2, {}, {});
  specs[1].AddSegment(options.dim, uniform, {"momentum", Params(plain)}, fp32);
  specs[1].SetWideSlots(std::vector<int32_t>{3, 5});
  if (options.expire_days < 36500)
    specs[1].expire_days.Set(options.expire_days, std::vector<int32_t>{5}, std::vector<int32_t>{1});
  specs[2].AddSegment(1, uniform, {"sgd", Params(plain)}, fp32);
  specs[2].max_rows = options.max_rows;
  specs[2].cap_eviction = options.cap_eviction;
  std::unique_ptr<AdmissionFilter> filter;
  if (options.has_filter) {
    filter = MakeAdmissionFilter("sliding_hash", Params({{"capacity", 1 << 14}, {"split_num", 7}}));
  }
  return std::make_unique<Group>(std::move(specs), std::move(filter), options.max_row_epoch);
}

// Random batches of three tables. Every position has a time of its own, so that no two rows have one score.
class RandomBatches {
 public:
  static constexpr int64_t kStart = 1'700'000'000, kBetween = 128;

  RandomBatches(uint64_t seed, uint32_t num_ids) : random_(seed), num_ids_(num_ids) {}

  uint64_t Next(uint64_t limit) { return random_() % limit; }
  bool OneIn(uint64_t count) { return Next(count) == 0; }
  int64_t NextTime() { return time_ += kBetween; }
  int64_t time() const { return time_; }

  // An id of a table: spread over int64, wide ones among them for table 1.
  SlotKey NextId(int table) {
    const uint64_t number = Next(num_ids_);
    if (table != 1) {
      const int64_t id = number == 0 ? std::numeric_limits<int64_t>::min() : IdOfHash(number * 0x9e3779b97f4a7c15);
      return {id, BucketOf(id)};
    }
    const uint64_t slot = number % 2;
    const int64_t id = number % 3 == 0 ? static_cast<int64_t>(number) : IdOfHash(number * 0x9e3779b97f4a7c15);
    return SlotKeyOf(id, (slot == 0 ? uint64_t{3} : uint64_t{5}) << kNarrowBits, kWideKey | slot << kBelowBucketBits);
  }
  TwinGroups::Batch NextBatch(size_t most_of_table) {
    TwinGroups::Batch batch;
    batch.splits = {0};
    batch.step = step_++;
    for (int table = 0; table < 3; ++table) {
      for (uint64_t left = Next(most_of_table + 1); left != 0; --left) {
        const SlotKey id = NextId(table);
        batch.keys.push_back(id.key);
        batch.buckets.push_back(static_cast<uint16_t>(id.bucket));
        batch.times.push_back(NextTime());
      }
      batch.splits.push_back(static_cast<int64_t>(batch.keys.size()));
    }
    if (batch.times.empty()) batch.times = {NextTime()};
    if (OneIn(4)) batch.scale = 0.5f;
    batch.reads_first = OneIn(2);
    return batch;
  }
  std::vector<float> NextFloats(size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(static_cast<int64_t>(Next(2001)) - 1000) / 512.0f;
    return values;
  }

 private:
  std::mt19937_64 random_;
  const uint32_t num_ids_;
  int64_t time_ = kStart;
  int64_t step_ = 0;
};

}  // namespace monolith::device
