#include "table/plan_kernels.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <limits>

#include "base/hash.h"
#include "base/process_key.h"

namespace monolith {
namespace {

// The caller may write to the value concurrently: a value that is used twice must be read once.
template <typename T>
T ReadOnce(const T* from) {
  return __atomic_load_n(from, __ATOMIC_RELAXED);
}

// The smaller of two, compiled without a branch: the compiler has no information about the result.
uint32_t MinWithoutBranch(uint32_t a, uint32_t b) {
  uint32_t least = std::min(a, b);
  asm("" : "+r"(least));
  return least;
}

// Destination of the next id of each part. A copy of the begins: the counters of another run may share a cache line
// with these, and the thread that distributes that run would cause false sharing.
class NextOfParts {
 public:
  NextOfParts(const uint32_t* begins, int shift) : shift_(shift) { std::copy_n(begins, kNumBuckets >> shift, next_); }
  uint32_t Take(uint16_t bucket) { return next_[bucket >> shift_]++; }

 private:
  const int shift_;
  uint32_t next_[kNumBuckets];
};

// An open hash table of numbers; an empty slot has the largest number. At most half full, and at most a quarter with
// the repetitions that are common in batches.
template <typename Slot>
class Slots {
 public:
  explicit Slots(uint32_t size) : bits_(std::bit_width(size) + 1), slots_(size_t{1} << bits_) {
    std::memset(slots_.data(), 0xff, slots_.size() * sizeof(Slot));
  }
  int shift() const { return 64 - bits_; }
  size_t mask() const { return slots_.size() - 1; }
  Slot* data() { return slots_.data(); }

 private:
  const int bits_;
  Buffer<Slot> slots_;
};

// The smaller of the slot's content and the next number is the number of the id in the slot or, if the slot is empty,
// of this id; and then the id with that number is this one, unless the slot holds another id. That alone is a branch,
// and seldom taken.
template <typename Slot, bool kManyTables, bool kGiven>
void NumberBySlots(const Part& part, DistinctOfPart& distinct, uint32_t* numbers) {
  Slots<Slot> memory(part.size());
  Slot* const slots = memory.data();
  const int shift = memory.shift();
  const size_t mask = memory.mask();
  int64_t* const unique = distinct.ids.data();
  uint16_t* const unique_buckets = distinct.buckets.data();
  uint32_t* const counts = distinct.counts.data();
  const int64_t* const ids = part.ids;
  const uint16_t* const buckets = part.buckets;
  uint32_t next = 0, j = 0;
  for (int table = 0; table < part.num_tables; ++table) {
    const uint32_t first = next, end = part.table_ends[table];
    const uint64_t salt = HashInProcess(static_cast<uint64_t>(table));  // equal ids of tables must not share a slot
    for (; j < end; ++j) {
      const int64_t id = ReadOnce(ids + j);
      unique[next] = id;
      counts[next] = 0;
      uint64_t key = static_cast<uint64_t>(id);
      uint16_t bucket = 0;
      if constexpr (kGiven) {
        bucket = buckets[j];
        unique_buckets[next] = bucket;
        key += kGoldenGamma * bucket;
      }
      const auto is_other = [&](uint32_t number) __attribute__((always_inline)) {
        return (unique[number] != id) | (kManyTables && number < first) | (kGiven && unique_buckets[number] != bucket);
      };
      size_t slot = (HashInProcess(key) + (kManyTables ? salt : 0)) >> shift;
      uint32_t number = MinWithoutBranch(slots[slot], next);
      while (is_other(number)) [[unlikely]] {
        slot = (slot + 1) & mask;
        number = MinWithoutBranch(slots[slot], next);
      }
      slots[slot] = static_cast<Slot>(number);
      ++counts[number];
      numbers[j] = number;
      next += number == next;
    }
    distinct.table_ends[table] = next;
  }
  distinct.size = next;
}

DistinctOfPart RoomFor(const Part& part) {
  DistinctOfPart distinct;
  distinct.ids = Buffer<int64_t>(part.size() + 1);  // one more: the next id is written before it is known to be new
  if (part.buckets != nullptr) distinct.buckets = Buffer<uint16_t>(part.size() + 1);
  distinct.counts = Buffer<uint32_t>(part.size() + 1);
  distinct.table_ends = Buffer<uint32_t>(static_cast<size_t>(part.num_tables));
  return distinct;
}

template <typename Slot>
void NumberWith(const Part& part, DistinctOfPart& distinct, uint32_t* numbers) {
  if (part.buckets != nullptr) return NumberBySlots<Slot, true, true>(part, distinct, numbers);
  if (part.num_tables > 1) return NumberBySlots<Slot, true, false>(part, distinct, numbers);
  NumberBySlots<Slot, false, false>(part, distinct, numbers);
}

}  // namespace

void FindBuckets(const int64_t* ids, int64_t count, int64_t* own, uint16_t* buckets) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id = ReadOnce(ids + i);
    own[i] = id;
    buckets[i] = static_cast<uint16_t>(BucketOf(id));
  }
}

void CountParts(const uint16_t* buckets, int64_t count, int shift, uint32_t* counts) {
  for (int64_t i = 0; i < count; ++i) ++counts[buckets[i] >> shift];
}

void DealOut(const int64_t* ids, const uint16_t* buckets, int64_t count, int32_t first_position, int shift,
             const uint32_t* begins, const DealtIds& out) {
  const DealtIds to = out;  // a copy that no write here can alias
  NextOfParts next(begins, shift);
  const auto deal = [&](int64_t i) __attribute__((always_inline)) {
    const uint32_t at = next.Take(buckets[i]);
    to.ids[at] = ids[i];
    to.positions[at] = first_position + static_cast<int32_t>(i);
    return at;
  };
  if (to.buckets == nullptr) {
    for (int64_t i = 0; i < count; ++i) deal(i);
  } else {
    for (int64_t i = 0; i < count; ++i) to.buckets[deal(i)] = buckets[i];
  }
}

void GatherDealt(const uint16_t* buckets, int64_t count, int shift, const uint32_t* begins, const uint32_t* dealt,
                 const int32_t* firsts, int32_t* out) {
  NextOfParts next(begins, shift);
  for (int64_t i = 0; i < count; ++i) {
    out[i] = firsts[buckets[i] >> shift] + static_cast<int32_t>(dealt[next.Take(buckets[i])]);
  }
}

DistinctOfPart NumberIds(const Part& part, uint32_t* numbers) {
  DistinctOfPart distinct = RoomFor(part);
  if (part.size() < std::numeric_limits<uint16_t>::max()) {
    NumberWith<uint16_t>(part, distinct, numbers);
  } else {
    NumberWith<uint32_t>(part, distinct, numbers);
  }
  return distinct;
}

DistinctOfPart NumberEach(const Part& part, uint32_t* numbers) {
  DistinctOfPart distinct = RoomFor(part);
  distinct.size = part.size();
  for (uint32_t j = 0; j < distinct.size; ++j) {
    distinct.ids[j] = ReadOnce(part.ids + j);
    distinct.counts[j] = 1;
    numbers[j] = j;
  }
  if (part.buckets != nullptr) std::copy_n(part.buckets, distinct.size, distinct.buckets.data());
  std::copy_n(part.table_ends, part.num_tables, distinct.table_ends.data());
  return distinct;
}

Buffer<PlaceOfId> SortDistinct(const Part& part, const DistinctOfPart& distinct, int32_t begin, int32_t first,
                               const PartOut& given_out) {
  const PartOut out = given_out;
  const uint32_t size = distinct.size, num_tables = static_cast<uint32_t>(part.num_tables);
  const int64_t* const ids = distinct.ids.data();
  const size_t num_cells = size_t{part.num_buckets} * num_tables;
  Buffer<uint32_t> cells(num_cells);
  std::memset(cells.data(), 0, num_cells * sizeof(uint32_t));
  Buffer<PlaceOfId> places(size);
  PlaceOfId* const place = places.data();  // .next: the cell, for now
  for (uint32_t u = 0, table = 0; table < num_tables; ++table) {
    for (const uint32_t end = distinct.table_ends[table]; u < end; ++u) {
      const uint32_t bucket = part.buckets == nullptr ? BucketOf(ids[u]) : distinct.buckets[u];
      const uint32_t cell = (bucket - part.first_bucket) * num_tables + table;
      place[u].next = static_cast<int32_t>(cell);
      ++cells[cell];
    }
  }
  uint32_t total = 0;
  for (size_t cell = 0; cell < num_cells; ++cell) {
    const uint32_t count = cells[cell];
    cells[cell] = total;
    total += count;
    out.splits[cell] = int64_t{first} + total;
  }
  for (uint32_t u = 0; u < size; ++u) {
    const uint32_t number = cells[static_cast<size_t>(place[u].next)]++;
    place[u].number = static_cast<int32_t>(number);
    out.unique[number] = ids[u];
    out.starts[number] = static_cast<int32_t>(distinct.counts[u]);
    if (out.buckets != nullptr) out.buckets[number] = distinct.buckets[u];
  }
  for (uint32_t number = 0; number < size; ++number) {
    const int32_t count = out.starts[number];
    out.starts[number] = begin;
    begin += count;
  }
  for (uint32_t u = 0; u < size; ++u) {
    place[u].next = out.starts[place[u].number];
    place[u].number += first;
  }
  return places;
}

void LinkIds(const int32_t* positions, uint32_t size, PlaceOfId* places, int32_t* order, uint32_t* numbers) {
  const auto link = [&](uint32_t j, int32_t position) __attribute__((always_inline)) {
    PlaceOfId& place = places[numbers[j]];
    const int32_t number = place.number;
    order[place.next++] = position;
    numbers[j] = static_cast<uint32_t>(number);
  };
  if (positions == nullptr) {
    for (uint32_t j = 0; j < size; ++j) link(j, static_cast<int32_t>(j));
  } else {
    for (uint32_t j = 0; j < size; ++j) link(j, positions[j]);
  }
}

}  // namespace monolith
