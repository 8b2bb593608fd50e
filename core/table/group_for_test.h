// A small group, threads that start together, and the decoded content of row blocks: for the stress tests of the
// tables.
//
// Table 0 is trained by Adagrad (state in the row), table 1 by SGD. Rows start at zero and the tests only write rows
// whose weights are all equal, so a torn row is detected.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "filter/admission_filter.h"
#include "format/block_source.h"
#include "format/row_block.h"
#include "table/group.h"
#include "table/plan.h"

namespace monolith {

inline constexpr int kAdagradDim = 6;
inline constexpr int kSgdDim = 3;
inline constexpr int64_t kStartTime = 1'700'000'000;

struct GroupOptions {
  uint32_t sgd_min_count = 0;  // of table 1; above 0 the group gets an admission filter
  uint32_t expire_days = 36500;
  uint64_t max_rows = 0;
  uint32_t max_row_epoch = kMaxRowEpoch;
};

inline TableSpec MakeTestSpec(const std::string& name, int dim, const Kernel& optimizer, const GroupOptions& options) {
  TableSpec spec(name);
  spec.expire_days.Set(options.expire_days, {}, {});
  spec.max_rows = options.max_rows;
  spec.AddSegment(dim, {"zeros", Params()}, optimizer, {"fp32", Params()});
  return spec;
}

inline std::unique_ptr<Group> MakeTestGroup(const GroupOptions& options = {}) {
  const std::map<std::string, double> plain = {{"stochastic_rounding", 0}, {"delay_compensation_lambda", 0}};
  std::map<std::string, double> adagrad = plain;
  adagrad.insert({{"initial_accumulator_value", 0.1}, {"weight_decay_factor", 0}, {"hessian_compression_times", 1}});
  std::vector<TableSpec> specs;
  specs.push_back(MakeTestSpec("adagrad", kAdagradDim, {"adagrad", Params(adagrad)}, options));
  specs.push_back(MakeTestSpec("sgd", kSgdDim, {"sgd", Params(plain)}, options));
  specs[1].min_counts.Set(options.sgd_min_count, {}, {});
  std::unique_ptr<AdmissionFilter> filter;
  if (options.sgd_min_count > 0) {
    filter = MakeAdmissionFilter("sliding_hash", Params({{"capacity", 1 << 20}, {"split_num", 7}}));
  }
  return std::make_unique<Group>(std::move(specs), std::move(filter), options.max_row_epoch);
}

// Runs `work(thread number)` on the given number of threads concurrently and waits for all.
template <typename Work>
void RunThreads(int count, const Work& work) {
  std::atomic<int> waiting{count};
  std::vector<std::thread> threads;
  for (int t = 0; t < count; ++t) {
    threads.emplace_back([&, t] {
      for (--waiting; waiting.load() > 0;) std::this_thread::yield();
      work(t);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Ids spread over all of int64, extremes included.
inline std::vector<int64_t> SpreadIds(int64_t count) {
  std::vector<int64_t> ids = {INT64_MIN, INT64_MAX};
  for (int64_t i = 2; i < count; ++i) ids.push_back(i * 0x100000001 - count);
  return ids;
}

// The first `count` ids from `from` on whose bucket is in [begin, end).
inline std::vector<int64_t> IdsInBuckets(int64_t count, uint32_t begin, uint32_t end, int64_t from = 0) {
  std::vector<int64_t> ids;
  for (int64_t id = from; static_cast<int64_t>(ids.size()) < count; ++id) {
    if (BucketOf(id) >= begin && BucketOf(id) < end) ids.push_back(id);
  }
  return ids;
}

// Ids most of which share four buckets, so that a walk of these takes many holds of the lock.
inline std::vector<int64_t> CrowdedIds(int64_t count) {
  std::vector<int64_t> ids = SpreadIds(count / 8);
  const std::vector<int64_t> crowd = IdsInBuckets(count - count / 8, 700, 704);
  ids.insert(ids.end(), crowd.begin(), crowd.end());
  return ids;
}

inline std::vector<int64_t> Draw(std::mt19937_64* random, size_t count, const std::vector<int64_t>& from) {
  std::vector<int64_t> ids(count);
  for (int64_t& id : ids) id = from[(*random)() % from.size()];
  return ids;
}

// One optimizer step over both tables: ids [0, half) go to table 0, the others to table 1. Gradients of a row are
// equal.
inline Applied ApplyStep(Group* group, const std::vector<int64_t>& ids, float gradient, int64_t time, bool read_first) {
  const auto count = static_cast<int64_t>(ids.size());
  const std::vector<int64_t> splits = {0, count / 2, count};
  Plan plan = MakePlan(ids, splits, true);
  if (read_first) {
    std::vector<float> values(static_cast<size_t>(group->NumValues(plan)));
    group->Read(plan, values, 0);
  }
  const std::vector<float> gradients(static_cast<size_t>(count / 2 * kAdagradDim + (count - count / 2) * kSgdDim),
                                     gradient);
  const std::vector<float> learning_rates = {0.5f, 1.0f};
  const std::vector<int64_t> times = {time};
  Update update;
  update.gradients = gradients;
  update.learning_rates = learning_rates;
  update.times = times;
  return group->Apply(plan, update);
}

// Reads ids of one table and expects all weights of a row to be equal; returns the first weight of each.
inline std::vector<float> LookupWhole(const Group& group, int table, const std::vector<int64_t>& ids) {
  const int dim = group.table(table).spec.dim();
  const auto count = static_cast<int64_t>(ids.size());
  const std::vector<int64_t> splits = {0, table == 0 ? count : 0, count};
  std::vector<float> values(ids.size() * static_cast<size_t>(dim));
  group.Lookup(ids, splits, values, 0);
  std::vector<float> firsts;
  for (size_t i = 0; i < ids.size(); ++i) {
    const float* row = values.data() + i * static_cast<size_t>(dim);
    for (int d = 1; d < dim; ++d) EXPECT_EQ(row[d], row[0]) << "torn row of id " << ids[i];
    firsts.push_back(row[0]);
  }
  return firsts;
}

// The content of blocks, independent of their order and of the division into blocks.
struct Content {
  std::map<std::pair<uint32_t, int64_t>, std::string> rows;      // (table, key) -> time and payload
  std::set<std::tuple<uint32_t, int64_t, uint32_t>> tombstones;  // table, key, epoch of the removal
  std::map<uint32_t, std::string> filters;                       // by bucket
  bool operator==(const Content&) const = default;
};

inline std::string RowText(uint32_t time, const void* payload, size_t bytes) {
  std::string text(reinterpret_cast<const char*>(&time), sizeof(time));
  return text.append(static_cast<const char*>(payload), bytes);
}

inline void AddBlock(const std::string& bytes, Content* content) {
  const RowBlockView block(bytes);
  const RowBlockHeader& header = block.header();
  if (header.kind == BlockKind::kFilter) content->filters[header.bucket] = block.payload_bytes();
  for (uint32_t i = 0; i < block.count(); ++i) {
    EXPECT_EQ(BucketOf(block.key(i)), header.bucket);
    if (header.kind == BlockKind::kTombstone) {
      content->tombstones.emplace(header.table, block.key(i), block.time(i));
      continue;
    }
    std::string text = RowText(block.time(i), block.payload(i), header.payload_bytes_per_row);
    const bool is_new = content->rows.try_emplace({header.table, block.key(i)}, std::move(text)).second;
    EXPECT_TRUE(is_new) << "row of " << block.key(i) << " came twice";
  }
}

// Returns the removals without their epochs.
inline std::set<std::pair<uint32_t, int64_t>> RemovedIn(const Content& content) {
  std::set<std::pair<uint32_t, int64_t>> removed;
  for (const auto& [table, key, epoch] : content.tombstones) removed.emplace(table, key);
  return removed;
}

inline Content ReadAll(BlockSource* source) {
  Content content;
  for (std::string block; source->Next(&block);) AddBlock(block, &content);
  return content;
}

// Returns the rows that the reading calls return, in the same form. REQUIRES: no call writes.
inline Content RowsOf(const Group& group) {
  Content content;
  for (int t = 0; t < group.num_tables(); ++t) {
    const TableSpec& spec = group.table(t).spec;
    const std::vector<int64_t> ids = group.Ids(t);
    const auto dim = static_cast<size_t>(spec.dim()), state_bytes = static_cast<size_t>(spec.state_bytes());
    std::vector<float> weights(ids.size() * dim);
    std::vector<uint8_t> state(ids.size() * state_bytes), found(ids.size());
    std::vector<int64_t> times(ids.size());
    EXPECT_EQ(group.LookupRows(t, ids, weights, state, times, found), static_cast<int64_t>(ids.size()));
    for (size_t i = 0; i < ids.size(); ++i) {
      std::string text = RowText(static_cast<uint32_t>(times[i]), weights.data() + i * dim, dim * sizeof(float));
      text.append(reinterpret_cast<const char*>(state.data() + i * state_bytes), state_bytes);
      EXPECT_TRUE(content.rows.try_emplace({static_cast<uint32_t>(t), ids[i]}, std::move(text)).second);
    }
  }
  return content;
}

}  // namespace monolith
