// How the slice of a sliding filter counts an id: which split it is found in, where the count goes, and when the ring
// turns (sliding_hash_filter.h explains the ring). Functions without a lock, over splits that may lie anywhere.
//
// `Splits` is what a slice has of them: size(), and operator[] to a split with the members Find, Write, Clear and full
// of FilterSplit.
#pragma once

#include <cstdint>

#include "filter/filter_split_rule.h"

namespace monolith {

// Where the ring stands.
struct SlidingHashRing {
  uint32_t head = 0;
  uint64_t head_increment = 0;
  uint64_t failure_count = 0;  // how often an id found no cell
};

struct SlidingHashRule {
  using Key = FilterSplitRule::Key;
  using Place = FilterSplitRule::Place;

  // The cell of an id is searched in the head, then in the split that will be head next.
  static constexpr uint32_t kMaxForwardStep = 2;

  struct Forward {
    uint32_t split;
    Place place;  // kNoCell: in no cell
  };
  template <typename Splits>
  static Forward FindForward(const SlidingHashRing& ring, const Splits& splits, Key key) {
    uint32_t split = ring.head;
    for (uint32_t step = 0; step < kMaxForwardStep; ++step) {
      const Place place = splits[split].Find(key);
      if (place.cell != FilterSplitRule::kNoCell) return {split, place};
      split = split + 1 == Count(splits) ? 0 : split + 1;
    }
    return {ring.head, {FilterSplitRule::kNoCell, 0}};
  }

  // Returns the id's count in the splits before the head, 0 if none has it.
  template <typename Splits>
  static uint32_t CountBehind(const SlidingHashRing& ring, const Splits& splits, Key key) {
    const uint32_t most = Count(splits) - kMaxForwardStep;
    const uint64_t steps = ring.head_increment < most ? ring.head_increment : most;
    uint32_t split = ring.head;
    for (uint64_t step = 0; step < steps; ++step) {
      split = split == 0 ? Count(splits) - 1 : split - 1;
      const uint32_t count = splits[split].Find(key).count;
      if (count > 0) return count;
    }
    return 0;
  }

  // Counts `count` occurrences and returns the count before them; 15 (admitted) when neither head nor its successor has
  // a cell for the id.
  template <typename Splits>
  static uint32_t Add(SlidingHashRing& ring, Splits& splits, Key key, uint32_t count) {
    const Forward forward = FindForward(ring, splits, key);
    if (forward.place.cell == FilterSplitRule::kNoCell) {
      ++ring.failure_count;
      return FilterSplitRule::kMaxCount;
    }
    auto&& split = splits[forward.split];  // a reference, or a handle of the split
    if (forward.place.count > 0) {
      split.Write(forward.place.cell, key, count);
      return forward.place.count;
    }
    const uint32_t old = CountBehind(ring, splits, key);
    const uint32_t bounded = count < FilterSplitRule::kMaxCount ? count : FilterSplitRule::kMaxCount;
    split.Write(forward.place.cell, key, old + bounded);
    if (splits[ring.head].full()) MoveHead(ring, splits);
    return old;
  }

  // Returns what Add would return.
  template <typename Splits>
  static uint32_t CountOf(const SlidingHashRing& ring, const Splits& splits, Key key) {
    const Forward forward = FindForward(ring, splits, key);
    if (forward.place.cell == FilterSplitRule::kNoCell) return FilterSplitRule::kMaxCount;
    return forward.place.count > 0 ? forward.place.count : CountBehind(ring, splits, key);
  }

 private:
  template <typename Splits>
  static uint32_t Count(const Splits& splits) {
    return static_cast<uint32_t>(splits.size());
  }

  // The split after the new head held the counts that did not change for a full rotation.
  template <typename Splits>
  static void MoveHead(SlidingHashRing& ring, Splits& splits) {
    ring.head = (ring.head + 1) % Count(splits);
    ++ring.head_increment;
    splits[(ring.head + 1) % Count(splits)].Clear();
  }
};

}  // namespace monolith
