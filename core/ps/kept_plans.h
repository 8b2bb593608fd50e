// Plans that pulls have left for the pushes that follow, with their row hints. Thread-safe.
//
// Bounded: above the limit of bytes the oldest plans are evicted, and the ids of their pushes have to be sent again.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "table/plan.h"

namespace monolith::ps {

class KeptPlans {
 public:
  explicit KeptPlans(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // Replaces the plan that had this ticket.
  void Keep(int64_t worker, uint64_t ticket, std::shared_ptr<const Plan> plan);
  // Returns null if the plan was evicted.
  std::shared_ptr<const Plan> Take(int64_t worker, uint64_t ticket);
  void Drop(int64_t worker, const std::vector<uint64_t>& tickets);
  void DropAllOf(int64_t worker);
  size_t size() const;

 private:
  using Key = std::pair<int64_t, uint64_t>;
  struct Kept {
    Key key;
    std::shared_ptr<const Plan> plan;
    uint64_t bytes;
  };
  using Place = std::list<Kept>::iterator;
  void Erase(std::map<Key, Place>::iterator found) REQUIRES(mutex_);

  const uint64_t max_bytes_;
  mutable Mutex mutex_;
  std::list<Kept> by_age_ GUARDED_BY(mutex_);  // oldest first
  std::map<Key, Place> by_key_ GUARDED_BY(mutex_);
  uint64_t bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace monolith::ps
