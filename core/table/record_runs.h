// The records that one shard owns: runs in ascending order, four bytes each. Small tables have a run for every 8 rows,
// so the size of a run matters. Used under the shard's lock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/record_pool.h"

namespace monolith {

class RecordRuns {
 public:
  using Run = RecordPool::Run;
  static constexpr uint32_t kLongestRun = RecordPool::kSmallestExtent;

  bool empty() const { return packed_.empty(); }
  size_t size() const { return packed_.size(); }
  Run operator[](size_t i) const { return Unpacked(packed_[i]); }
  Run back() const { return Unpacked(packed_.back()); }
  size_t MemoryBytes() const { return packed_.capacity() * sizeof(packed_[0]); }

  // Index of the first run that has records from this number on; size() if there is none.
  size_t FirstFrom(uint32_t record) const {
    const auto is_before = [record](uint32_t run) { return Unpacked(run).end() <= record; };
    return static_cast<size_t>(std::partition_point(packed_.begin(), packed_.end(), is_before) - packed_.begin());
  }

  // Appends a run. Adjacent runs are merged, except across a multiple of kLongestRun: the memory of a run is
  // contiguous. REQUIRES: the run comes after all others, is no longer than kLongestRun, and its own memory is
  // contiguous.
  void Add(Run run) {
    if (!empty() && back().end() == run.begin && back().count + run.count <= kLongestRun &&
        run.begin % kLongestRun != 0) {
      packed_.back() = Packed({back().begin, back().count + run.count});
      return;
    }
    // By a quarter: doubling, of which half may never be used, would cost half a byte per row of a small table.
    if (packed_.size() == packed_.capacity()) packed_.reserve(packed_.size() + packed_.size() / 4 + 4);
    packed_.push_back(Packed(run));
  }

  void Clear() { packed_.clear(); }

 private:
  static constexpr uint32_t kUnit = RecordPool::kUnit;
  static_assert(kLongestRun / kUnit == kUnit, "units before the run and units in it share a word");

  static uint32_t Packed(Run run) { return run.begin | (run.count / kUnit - 1); }
  static Run Unpacked(uint32_t packed) { return {packed & ~(kUnit - 1), (packed % kUnit + 1) * kUnit}; }

  std::vector<uint32_t> packed_;
};

}  // namespace monolith
