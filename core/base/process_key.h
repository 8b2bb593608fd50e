// A hash that cannot be predicted outside of this process, for positions in memory.
//
// HashId() is public, and ids often come from outside: ids chosen to have neighbouring public hashes would make every
// search probe all of them. Searches by this hash stay short whatever the ids are. Nothing that is written to a file or
// that a caller sees may depend on it. Thread-safe: constant once the library is loaded.
#pragma once

#include <cstdint>

namespace monolith {

extern const uint64_t kProcessKey;  // odd; a forked child has its parent's

// Use the upper bits. Two multiplications: after one, evenly spaced numbers would stay evenly spaced, and sometimes
// collide. And the upper half is folded down before both: numbers that differ in their upper bits alone would be spaced
// evenly by two as well, which for one key in thirty makes them collide.
inline uint64_t HashInProcess(uint64_t x) {
  x = (x ^ (x >> 32)) * kProcessKey;
  return (x ^ (x >> 32)) * kProcessKey;
}

}  // namespace monolith
