// Plans that pulls have left for the pushes that follow, with their row hints. Any thread may call it.
//
// Bounded: when there are too many bytes, the oldest go, and the ids of their pushes have to travel again.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "table/plan.h"

namespace monolith::ps {

class KeptPlans {
 public:
  explicit KeptPlans(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // Replaces what had this ticket.
  void Keep(int64_t worker, uint64_t ticket, std::shared_ptr<const Plan> plan);
  // Null if it is gone.
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
  void Erase(std::map<Key, Place>::iterator found);

  const uint64_t max_bytes_;
  mutable std::mutex mutex_;  // guards what follows
  std::list<Kept> by_age_;    // oldest first
  std::map<Key, Place> by_key_;
  uint64_t bytes_ = 0;
};

}  // namespace monolith::ps
