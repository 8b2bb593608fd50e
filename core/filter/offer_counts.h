// How often ids without a row were offered, exactly: what a filter that draws takes for the step of a call that has
// none. A value type without a lock; owned by one filter slice. Format of Save(): docs/formats/filter.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

namespace monolith {

class OfferCounts {
 public:
  // The number of earlier offers of this id; this one counts from now on, up to 2^32 - 1.
  uint32_t Add(uint64_t hash);
  // The id has a row now, or was erased.
  void Forget(uint64_t hash) {
    if (!counts_.empty()) counts_.erase(hash);
  }
  void Clear() { counts_.clear(); }

  size_t size() const { return counts_.size(); }
  size_t MemoryBytes() const;

  // Empty bytes: there are none. Load throws kInvalidArgument for bytes of something else or of another version and
  // kDataLoss for damaged ones, and leaves the counts as they were.
  std::string Save() const;
  void Load(const std::string& bytes);

 private:
  std::unordered_map<uint64_t, uint32_t> counts_;
};

}  // namespace monolith
