// Admits a new id by a draw instead of a count: no memory, nothing to save.
//
// Unequal: an id seen `count` times in a call enters with probability min(1, count / threshold).
// Equal: every single occurrence enters with p = 1 - 0.05^(1 / threshold), so `count` of them with 1 - (1 - p)^count;
// after `threshold` occurrences 95 of 100 ids are in.
//
// The draw is a function of the caller's seed alone, hence the same for any number of threads, after a restart,
// anywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "filter/admission_filter.h"

namespace monolith {

class ProbabilisticFilterSlice final : public FilterSlice {
 public:
  explicit ProbabilisticFilterSlice(bool equal_probability) : equal_probability_(equal_probability) {}

  bool ShouldDrop(uint64_t hash, uint32_t count, uint32_t threshold, uint64_t seed) override;
  std::string Save() const override { return {}; }
  // Accepts the empty bytes of its own Save(); kInvalidArgument for any other, which belong to a filter that counts.
  void Load(const std::string& bytes) override;
  void Clear() override {}
  size_t MemoryBytes() const override { return sizeof(*this); }
  std::unique_ptr<FilterSlice> Clone() const override;

 private:
  bool equal_probability_;
};

class ProbabilisticFilter final : public AdmissionFilter {
 public:
  // Parameter: equal_probability (0/1).
  explicit ProbabilisticFilter(const Params& params) : equal_probability_(params.GetBool("equal_probability")) {}
  std::unique_ptr<FilterSlice> MakeSlice() const override;
  uint32_t max_threshold() const override { return UINT32_MAX; }

 private:
  bool equal_probability_;
};

}  // namespace monolith
