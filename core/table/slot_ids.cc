#include "table/slot_ids.h"

#include <algorithm>
#include <vector>

#include "base/hash.h"
#include "base/thread_pool.h"
#include "table/slot_keys.h"

namespace monolith {
namespace {

constexpr int64_t kIdsForThreads = 16384;  // below this, waking another thread costs more than it saves

void PackAnyIds(std::span<const int64_t> ids, const SlotBits& bits, int64_t* keys, uint16_t* buckets) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const SlotKey made = SlotKeyOf(ids[i], bits.given, bits.wide);
    keys[i] = made.key;
    buckets[i] = static_cast<uint16_t>(made.bucket);
  }
}

}  // namespace

bool PackIds(std::span<const int64_t> ids, const SlotBits& bits, int64_t* keys, uint16_t* buckets) {
  if (bits.wide != 0) {
    PackAnyIds(ids, bits, keys, buckets);
    return true;
  }
  uint64_t seen = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint64_t id = static_cast<uint64_t>(ids[i]) ^ bits.taken;
    seen |= id;
    keys[i] = static_cast<int64_t>(id | bits.given);
    buckets[i] = static_cast<uint16_t>(BucketOf(keys[i]));
  }
  return (seen & bits.forbidden) == 0;
}

int PackSlotIds(std::span<const std::span<const int64_t>> slots, std::span<const SlotBits> bits, int64_t* keys,
                uint16_t* buckets) {
  std::vector<int64_t> begins;
  int64_t total = 0;
  for (const auto& ids : slots) {
    begins.push_back(total);
    total += static_cast<int64_t>(ids.size());
  }
  std::vector<char> is_good(slots.size());
  const auto pack = [&](int slot) {
    is_good[slot] = PackIds(slots[slot], bits[slot], keys + begins[slot], buckets + begins[slot]);
  };
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
