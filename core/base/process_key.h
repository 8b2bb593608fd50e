// A hash that nobody outside of this process can foresee, for places in memory.
//
// HashId() is public, and ids often come from outside: whoever chooses ids that the public hash puts side by side would
// make every search walk past all of them. What is found by this one stays short whatever the ids are. Nothing that is
// written to a file or that a caller sees may depend on it. Thread-safe: constant once the library is loaded.
#pragma once

#include <cstdint>

namespace monolith {

extern const uint64_t kProcessKey;  // odd; a forked child has its parent's

// The upper bits are the good ones. Two multiplications: after one, evenly spaced numbers would stay evenly spaced, and
// now and then fall together. And the upper half is folded down before both: numbers that differ in their upper bits
// alone would be spaced evenly by two as well, which for one key in thirty puts them on top of each other.
inline uint64_t HashInProcess(uint64_t x) {
  x = (x ^ (x >> 32)) * kProcessKey;
  return (x ^ (x >> 32)) * kProcessKey;
}

}  // namespace monolith
