#include "filter/admission_filter.h"

#include "filter/probabilistic_filter.h"
#include "filter/sliding_hash_filter.h"

namespace monolith {

void AdmissionFilter::CheckThreshold(uint32_t threshold, const std::string& subject) const {
  if (threshold <= max_threshold()) return;
  throw Error(Code::kInvalidArgument,
              subject + ": the admission filter counts occurrences up to " + std::to_string(max_threshold()) +
                  ", so a threshold of " + std::to_string(threshold) +
                  " would keep every new id out for ever; lower it, or use the probabilistic filter");
}

std::unique_ptr<AdmissionFilter> MakeAdmissionFilter(const std::string& kind, const Params& params) {
  if (kind == "sliding_hash") return std::make_unique<SlidingHashFilter>(params);
  if (kind == "probabilistic") return std::make_unique<ProbabilisticFilter>(params);
  throw Error(Code::kInvalidArgument,
              "unknown admission filter '" + kind + "': expected sliding_hash or probabilistic");
}

}  // namespace monolith
