#include "table/change_log.h"

#include <algorithm>
#include <iterator>

namespace monolith {
namespace {

constexpr size_t kSmallestLog = 256;
constexpr size_t kLogFraction = 8;  // a log longer than 1/8 of the rows is no faster than a scan of all rows

}  // namespace

// Copies the recent rows to the log. REQUIRES: they are of an epoch above floor_.
void ChangeLog::MoveRecent(size_t size) {
  const size_t limit = std::max(kSmallestLog, size / kLogFraction);
  if (changed_.size() >= limit) MakeRoom(recent_.epoch, limit);
  if (recent_.epoch <= floor_) return;
  if (logged_.empty() || logged_.back().epoch != recent_.epoch) {
    logged_.push_back({recent_.epoch, static_cast<uint32_t>(changed_.size())});
  }
  changed_.insert(changed_.end(), recent_.rows, recent_.rows + recent_.count);
}

// Drops the oldest epochs, at least a quarter of the log at a time, since the remaining entries have to be moved. An
// epoch that fills the log alone will not be read from it: such a log restarts after it.
void ChangeLog::MakeRoom(uint32_t epoch, size_t limit) {
  const size_t surplus = changed_.size() - (limit - limit / 4);
  auto kept = std::partition_point(logged_.begin(), logged_.end(),
                                   [surplus](const Logged& logged) { return logged.begin < surplus; });
  if (kept == logged_.end() && logged_.back().epoch == epoch) --kept;
  if (kept != logged_.end() && changed_.size() - kept->begin >= limit) return Restart(epoch);
  Forget(std::prev(kept)->epoch);
}

void ChangeLog::Restart(uint32_t epoch) {
  Clear();
  floor_ = epoch;
  logged_.shrink_to_fit();
  changed_.shrink_to_fit();
}

void ChangeLog::Clear() {
  recent_.count = 0;
  logged_.clear();
  changed_.clear();
}

bool ChangeLog::From(uint32_t first, std::vector<uint32_t>* rows) const {
  rows->clear();
  if (first <= floor_) return false;
  const auto from = std::partition_point(logged_.begin(), logged_.end(),
                                         [first](const Logged& logged) { return logged.epoch < first; });
  if (from != logged_.end()) rows->assign(changed_.begin() + from->begin, changed_.end());
  if (recent_.epoch >= first) rows->insert(rows->end(), recent_.rows, recent_.rows + recent_.count);
  std::sort(rows->begin(), rows->end());
  rows->erase(std::unique(rows->begin(), rows->end()), rows->end());
  return true;
}

void ChangeLog::Forget(uint32_t before) {
  const auto kept = std::partition_point(logged_.begin(), logged_.end(),
                                         [before](const Logged& logged) { return logged.epoch <= before; });
  floor_ = std::max(floor_, before);
  if (kept == logged_.begin()) return;
  const uint32_t dropped = kept == logged_.end() ? static_cast<uint32_t>(changed_.size()) : kept->begin;
  logged_.erase(logged_.begin(), kept);
  for (Logged& logged : logged_) logged.begin -= dropped;
  changed_.erase(changed_.begin(), changed_.begin() + dropped);
}

void ChangeLog::Shift(const EpochShift& shift) {
  recent_.epoch = shift.Of(recent_.epoch);
  for (Logged& logged : logged_) logged.epoch = shift.Of(logged.epoch);
  if (floor_ != UINT32_MAX) floor_ = shift.Of(floor_);
}

}  // namespace monolith
