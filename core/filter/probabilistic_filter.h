// Admits a new id by a draw instead of a count.
//
// Unequal: an id seen `count` times in a call is admitted with probability min(1, count / threshold).
// Equal: every single occurrence is admitted with p = 1 - 0.05^(1 / threshold), so `count` of them with 1 - (1 -
// p)^count; after `threshold` occurrences 95 of 100 ids are admitted.
//
// The draw is a function of the seed of (table, id) and the step of the call, hence the same for any number of threads,
// after a restart and on any machine, and it needs no state. A call without a step uses the number of earlier offers of
// the id instead: these are counted until the id is admitted, and are the only state of a slice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "filter/admission_filter.h"
#include "filter/offer_counts.h"
#include "filter/probabilistic_rule.h"

namespace monolith {

class ProbabilisticFilterSlice final : public FilterSlice {
 public:
  explicit ProbabilisticFilterSlice(bool equal_probability) : rule_{equal_probability} {}

  bool ShouldDrop(const Offer& offer) override;
  void Forget(uint64_t hash) override { offers_.Forget(hash); }
  std::string Save() const override { return offers_.Save(); }
  void Load(const std::string& bytes) override { offers_.Load(bytes); }
  void Clear() override { offers_.Clear(); }
  size_t MemoryBytes() const override { return sizeof(*this) + offers_.MemoryBytes(); }
  std::unique_ptr<FilterSlice> Clone() const override;

 private:
  ProbabilisticRule rule_;
  OfferCounts offers_;
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
