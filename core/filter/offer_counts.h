// The exact number of offers of ids without a row: a filter that draws uses it in calls without a step. A value type
// without a lock; owned by one filter slice. Format of Save(): docs/formats/filter.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

namespace monolith {

class OfferCounts {
 public:
  // Counts an offer, up to 2^32 - 1, and returns the number of earlier offers of this id.
  uint32_t Add(uint64_t hash);
  // Drops the count: the id has a row now, or was erased.
  void Forget(uint64_t hash) {
    if (!counts_.empty()) counts_.erase(hash);
  }
  void Clear() { counts_.clear(); }

  size_t size() const { return counts_.size(); }
  size_t MemoryBytes() const;

  // Empty bytes: no counts. Load throws kInvalidArgument for bytes of another kind or version and kDataLoss for damaged
  // ones, and leaves the counts unchanged.
  std::string Save() const;
  void Load(const std::string& bytes);

 private:
  std::unordered_map<uint64_t, uint32_t> counts_;
};

}  // namespace monolith
