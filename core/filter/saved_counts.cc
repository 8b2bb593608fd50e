#include "filter/saved_counts.h"

#include <memory>

#include "filter/probabilistic_filter.h"
#include "filter/sliding_hash_filter.h"

namespace monolith {

std::string WithoutCounts(const std::string& bytes, std::span<const uint64_t> hashes) {
  if (bytes.empty()) return bytes;
  std::unique_ptr<FilterSlice> slice = SlidingHashFilterSlice::LikeSaved(bytes);
  if (slice == nullptr) slice = std::make_unique<ProbabilisticFilterSlice>(false);  // either kind saves the same bytes
  slice->Load(bytes);
  for (const uint64_t hash : hashes) slice->Forget(hash);
  return slice->Save();
}

}  // namespace monolith
