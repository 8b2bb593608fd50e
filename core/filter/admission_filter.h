// Keeps rare ids out of a table. One slice per bucket: a slice is accessed only under its bucket's lock, so it needs no
// lock itself, is part of the cut, and moves with the bucket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/params.h"

namespace monolith {

inline constexpr int64_t kNoStep = -1;

// An id that is not in the table, seen `count` more times. REQUIRES: count > 0, 0 < threshold <= max_threshold() of the
// filter.
struct Offer {
  uint64_t hash;  // HashId(id) mixed with the table
  uint32_t count;
  uint32_t threshold;
  uint64_t seed;           // of (table, id), for filters that draw
  int64_t step = kNoStep;  // of the call; without one, a filter that draws counts the offers of the id
};

class FilterSlice {
 public:
  virtual ~FilterSlice() = default;

  // True iff the id must be rejected now.
  virtual bool ShouldDrop(const Offer& offer) = 0;
  // Drops the count of an id; `hash` as in Offer. Its next offer counts as the first.
  virtual void Forget(uint64_t hash) = 0;

  // Exact state as bytes, and back; the format includes its parameters and rejects bytes with other ones with kDataLoss
  // or kInvalidArgument, leaving the slice unchanged. Empty bytes: nothing was ever counted.
  virtual std::string Save() const = 0;
  virtual void Load(const std::string& bytes) = 0;
  virtual void Clear() = 0;
  virtual size_t MemoryBytes() const = 0;
  virtual std::unique_ptr<FilterSlice> Clone() const = 0;
};

// Makes the slices. Immutable, thread-safe; slices may outlive it.
class AdmissionFilter {
 public:
  virtual ~AdmissionFilter() = default;
  virtual std::unique_ptr<FilterSlice> MakeSlice() const = 0;
  // The largest threshold that the filter can represent; callers reject greater ones (CheckThreshold).
  virtual uint32_t max_threshold() const = 0;
  // Throws kInvalidArgument, naming `subject` ("slot 12 of table 'user'"), iff the threshold can never be reached.
  void CheckThreshold(uint32_t threshold, const std::string& subject) const;
};

// Kinds: sliding_hash (capacity: ids of the group, divided by kNumBuckets for a slice; split_num), probabilistic
// (equal_probability). Throws kInvalidArgument for an unknown kind or a bad parameter.
std::unique_ptr<AdmissionFilter> MakeAdmissionFilter(const std::string& kind, const Params& params);

}  // namespace monolith
