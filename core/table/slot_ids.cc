#include "table/slot_ids.h"

#include <algorithm>
#include <vector>

#include "base/thread_pool.h"

namespace monolith {
namespace {

constexpr int64_t kIdsForThreads = 16384;  // below this, waking another thread costs more than it saves

bool PackSlot(std::span<const int64_t> ids, const SlotBits& bits, int64_t* out) {
  uint64_t seen = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint64_t id = static_cast<uint64_t>(ids[i]) ^ bits.taken;
    seen |= id;
    out[i] = static_cast<int64_t>(id | bits.given);
  }
  return (seen & bits.forbidden) == 0;
}

}  // namespace

int PackSlotIds(std::span<const std::span<const int64_t>> slots, std::span<const SlotBits> bits, int64_t* out) {
  std::vector<int64_t> begins;
  int64_t total = 0;
  for (const auto& ids : slots) {
    begins.push_back(total);
    total += static_cast<int64_t>(ids.size());
  }
  std::vector<char> is_good(slots.size());
  const auto pack = [&](int slot) { is_good[slot] = PackSlot(slots[slot], bits[slot], out + begins[slot]); };
  const int num_slots = static_cast<int>(slots.size());
  if (total < kIdsForThreads) {
    for (int slot = 0; slot < num_slots; ++slot) pack(slot);
  } else {
    ParallelFor(num_slots, pack);
  }
  const auto bad = std::find(is_good.begin(), is_good.end(), 0);
  return bad == is_good.end() ? -1 : static_cast<int>(bad - is_good.begin());
}

}  // namespace monolith
