#include "ps/kept_plans.h"

#include <limits>

namespace monolith::ps {
namespace {

uint64_t BytesOf(const Plan& plan) {
  const uint64_t unique = plan.unique.size();
  return plan.splits.size() * sizeof(int64_t) + unique * (sizeof(int64_t) + 4 * sizeof(int32_t)) +
         plan.counts.size() * sizeof(int32_t) + plan.buckets.size() * sizeof(uint16_t);
}

}  // namespace

void KeptPlans::Keep(int64_t worker, uint64_t ticket, std::shared_ptr<const Plan> plan) {
  const Key key{worker, ticket};
  const uint64_t bytes = BytesOf(*plan);
  MutexLock lock(mutex_);
  if (const auto found = by_key_.find(key); found != by_key_.end()) Erase(found);
  by_key_[key] = by_age_.insert(by_age_.end(), {key, std::move(plan), bytes});
  bytes_ += bytes;
  while (bytes_ > max_bytes_) Erase(by_key_.find(by_age_.front().key));
}

std::shared_ptr<const Plan> KeptPlans::Take(int64_t worker, uint64_t ticket) {
  MutexLock lock(mutex_);
  const auto found = by_key_.find({worker, ticket});
  if (found == by_key_.end()) return nullptr;
  std::shared_ptr<const Plan> plan = found->second->plan;
  Erase(found);
  return plan;
}

void KeptPlans::Drop(int64_t worker, const std::vector<uint64_t>& tickets) {
  MutexLock lock(mutex_);
  for (const uint64_t ticket : tickets) {
    if (const auto found = by_key_.find({worker, ticket}); found != by_key_.end()) Erase(found);
  }
}

void KeptPlans::DropAllOf(int64_t worker) {
  MutexLock lock(mutex_);
  for (auto next = by_key_.lower_bound({worker, 0}); next != by_key_.end() && next->first.first == worker;) {
    Erase(next++);
  }
}

size_t KeptPlans::size() const {
  MutexLock lock(mutex_);
  return by_key_.size();
}

void KeptPlans::Erase(std::map<Key, Place>::iterator found) {
  bytes_ -= found->second->bytes;
  by_age_.erase(found->second);
  by_key_.erase(found);
}

}  // namespace monolith::ps
