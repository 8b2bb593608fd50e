// The rules of all segments of a group's tables, as kernels use them: how rows start, learn and are read.
//
// Immutable; thread-safe. The caller copies bytes() to memory of the device once and passes its address to every call;
// this memory and all other that calls use belong to the caller. Calls launch kernels and do not wait for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/launcher.h"
#include "table/group.h"

namespace monolith::device {

// Whether there are kernels for an optimizer.
bool HasKernels(const RowOptimizer& optimizer);

// Blocks of a launch whose threads count for some of `count` items each, and then add to one counter.
uint64_t BlocksForCounting(const Launcher& launcher, uint64_t count);

// The distinct ids of a plan and their rows.
struct RowsOfPlan {
  uint32_t first_table;  // of the plan, in the group: `tables` and the plan's numbers of tables count from it
  DistinctIds ids;
  Tables tables;
  ValueLayout layout;    // of weights and gradients
  const uint32_t* rows;  // [ids.count]; kNoRow: none
};

struct LearnArguments {
  NewRanks ranks;          // which ids are new: their rows have a header only
  const float* gradients;  // summed and scaled
  float* adjusted;         // of their size, for SegmentRules::adjusts_gradients(); may be the gradients themselves
  const float* latest;     // weights that the worker read, laid out as gradients are; null: not known
  const float* rates;      // every segment of every table of the group, in table order
  int64_t step;
  const uint32_t* refused;  // not 0: nothing changes
};

class SegmentRules {
 public:
  explicit SegmentRules(const Group& group);

  // To be copied to a boundary of 16 bytes.
  std::span<const std::byte> bytes() const { return bytes_; }
  // [tables of the group], in the copy; for CheckGradients.
  const TableTraits* traits(const std::byte* copy) const {
    return reinterpret_cast<const TableTraits*>(copy + traits_at_);
  }

  // Whether Learn() needs memory for other gradients than the given ones.
  bool adjusts_gradients() const { return adjusting_.max_dim != 0; }
  // Whether reads must call Retrieve().
  bool quantises() const { return quantising_.max_dim != 0; }
  // Of all tables, for launches whose lanes share a row.
  uint32_t lane_bits() const { return LaneBitsOf(all_); }

  // One optimizer step for the rows; new ones start before it.
  void Learn(Launcher& launcher, Stream stream, const std::byte* copy, const RowsOfPlan& plan,
             const LearnArguments& arguments) const;
  // Replaces weights by what training reads of them at this step.
  void Retrieve(Launcher& launcher, Stream stream, const std::byte* copy, const RowsOfPlan& plan, int64_t step,
                float* weights) const;

 private:
  // Some segments of each table (SegmentList), and where they are in `bytes_`.
  struct Segments {
    std::vector<uint32_t> starts = {0};
    std::vector<uint32_t> numbers;
    uint32_t max_dim = 0;  // 0: there are none
    size_t starts_at = 0, numbers_at = 0;

    void Add(uint32_t number, uint32_t dim);
    void EndTable() { starts.push_back(static_cast<uint32_t>(numbers.size())); }
    bool HasAny(uint32_t first_table, uint32_t num_tables) const {
      return starts[first_table] != starts[first_table + num_tables];
    }
  };

  static uint32_t LaneBitsOf(const Segments& segments) { return LaneBitsFor((segments.max_dim + 3) / 4); }
  template <typename Visit>
  void ForEachList(Visit&& visit);
  void AddTable(const TableSpec& spec);
  void AddSegment(const Segment& segment, uint32_t number_in_table);
  template <typename T>
  size_t Append(const std::vector<T>& values);
  SegmentList ListOf(const std::byte* copy, const Segments& segments, uint32_t first_table) const;
  RowSeeds SeedsOf(const std::byte* copy, uint32_t first_table) const;

  std::vector<SegmentView> segments_;
  std::vector<TableTraits> tables_;
  std::vector<int32_t> wide_slots_;
  Segments all_, adjusting_, rounding_, quantising_;
  std::vector<Segments> of_rule_;  // for each rule that has kernels
  std::vector<std::byte> bytes_;
  size_t segments_at_ = 0, traits_at_ = 0, wide_slots_at_ = 0;
};

}  // namespace monolith::device
