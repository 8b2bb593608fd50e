// Tables in memory of this process, changed by the kernels of device/kernels/: what their caller keeps and does between
// launches.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/process_key.h"
#include "device/plan_for_test.h"

namespace monolith::device {

class TableForTest {
 public:
  // `keeps_buckets`: as tables with wide keys do.
  TableForTest(uint32_t payload_floats, uint32_t chunk_bits, uint32_t segment_bits, bool keeps_buckets = false)
      : chunk_bits_(chunk_bits), keeps_buckets_(keeps_buckets) {
    view_.chunk_bits = chunk_bits;
    view_.stride = (payload_floats + 3) / 4 * 4;
    view_.counters = counters_.data();
    for (uint32_t segment = 0; segment < kNumSegments; ++segment) UseSegment(segment, segment_bits);
    Reserve(1);
  }
  TableForTest(const TableForTest&) = delete;
  TableForTest& operator=(const TableForTest&) = delete;

  // Makes room for this many rows.
  void Reserve(uint32_t num_rows) {
    while (num_rows > chunks_.size() << chunk_bits_) {
      headers_.emplace_back(size_t{1} << chunk_bits_);
      payloads_.emplace_back(size_t{view_.stride} << chunk_bits_);
      if (keeps_buckets_) buckets_.emplace_back(size_t{1} << chunk_bits_);
      chunks_.push_back(
          {headers_.back().data(), payloads_.back().data(), keeps_buckets_ ? buckets_.back().data() : nullptr});
    }
    free_rows_.resize(chunks_.size() << chunk_bits_);
    view_.chunks = chunks_.data();
    view_.free_rows = free_rows_.data();
  }

  // Gives a segment new memory; returns the old one.
  Shared<uint64_t> UseSegment(uint32_t segment, uint32_t bits) {
    Shared<uint64_t> before = std::exchange(segments_[segment], Shared<uint64_t>(size_t{1} << bits, kFreeWord));
    view_.segments[segment] = segments_[segment].data();
    view_.segment_bits[segment] = static_cast<uint8_t>(bits);
    return before;
  }

  const TableView& view() const { return view_; }
  const TableCounters& counters() const { return counters_[0]; }

 private:
  const uint32_t chunk_bits_;
  const bool keeps_buckets_;
  TableView view_{};
  Shared<TableCounters> counters_{1};
  Shared<uint64_t> segments_[kNumSegments];
  std::vector<Shared<RowHeader>> headers_;
  std::vector<Shared<float>> payloads_;
  std::vector<Shared<uint16_t>> buckets_;
  Shared<Chunk> chunks_;
  Shared<uint32_t> free_rows_;
};

// The rows of the ids of a plan, and which of them are new.
struct Inserted {
  Shared<uint32_t> rows;
  Shared<int32_t> ranks, sums;

  NewRanks RanksOf(const PlanForTest& plan) const { return {ranks.data(), plan.splits.data(), sums.data()}; }
};

class TablesForTest {
 public:
  TablesForTest(Launcher& launcher, std::vector<TableForTest*> tables, uint64_t process_key = kProcessKey)
      : launcher_(launcher), tables_(std::move(tables)), process_key_(process_key) {}

  Tables tables() {
    views_.clear();
    for (const TableForTest* table : tables_) views_.push_back(table->view());
    return {views_.data(), process_key_};
  }

  Shared<uint32_t> Find(const PlanForTest& plan) {
    Shared<uint32_t> rows(plan.unique.size(), 12345);
    Launch(rows.size(), FindRows{plan.ids(), tables(), rows.data()});
    return rows;
  }

  // Rows of the ids; those that had none get one.
  Shared<uint32_t> FindOrInsert(const PlanForTest& plan, uint32_t epoch = 1, uint32_t refuses = 0) {
    return Insert(plan, epoch, refuses).rows;
  }

  Inserted Insert(const PlanForTest& plan, uint32_t epoch = 1, uint32_t refuses = 0) {
    const Shared<uint32_t> refused = {refuses};
    Inserted made = {Find(plan), {}, Shared<int32_t>(size_t{kNumBuckets} * plan.num_tables)};
    const size_t count = made.rows.size();
    Shared<int32_t> is_missing(count);
    Launch(count, FlagMissing{static_cast<uint32_t>(count), made.rows.data(), is_missing.data()});
    made.ranks = InclusiveSums(is_missing);
    Launch(made.sums.size(), CountNewInCells{plan.num_tables, plan.splits.data(), made.ranks.data(), made.sums.data()});
    for (size_t i = 0; i < made.sums.size(); ++i) {
      if (i % kNumBuckets != 0) made.sums[i] += made.sums[i - 1];
    }
    for (TableForTest* table : tables_) table->Reserve(table->counters().next_row + static_cast<uint32_t>(count));
    const NewRanks ranks = made.RanksOf(plan);
    Launch(count, InsertRows{plan.ids(), tables(), ranks, refused.data(), epoch, made.rows.data()});
    Launch(plan.num_tables, CountInserted{plan.ids(), tables(), ranks, refused.data()});
    return made;
  }

  void Erase(const PlanForTest& plan) {
    const Shared<uint32_t> rows = Find(plan);
    Launch(rows.size(), EraseRows{plan.ids(), tables(), rows.data()});
  }

  void Rehash(uint32_t table, uint32_t segment, uint32_t bits) {
    const Shared<uint64_t> before = tables_[table]->UseSegment(segment, bits);
    Launch(before.size(), RehashSegment{tables(), table, before.data(), before.size()});
  }

  // Words of a segment that rows have (first) and had.
  std::pair<uint32_t, uint32_t> Count(uint32_t table, uint32_t segment) {
    const TableView& view = tables_[table]->view();
    Shared<uint32_t> counts(2);
    const uint64_t size = uint64_t{1} << view.segment_bits[segment];
    launcher_.LaunchBlocks(3, CountWords{view.segments[segment], size, &counts[0], &counts[1]}, Stream{});
    return {counts[0], counts[1]};
  }

  template <typename Kernel>
  void Launch(uint64_t num_threads, const Kernel& kernel) {
    launcher_.Launch(num_threads, kernel, Stream{});
  }

 private:
  Launcher& launcher_;
  const std::vector<TableForTest*> tables_;
  const uint64_t process_key_;
  Shared<TableView> views_;
};

}  // namespace monolith::device
