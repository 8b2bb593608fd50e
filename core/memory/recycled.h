// Large blocks of memory that are used for one batch and needed again by the next: kept for reuse instead of being
// returned to the system, which would have to clear every page again. Thread-safe; keeps at most a few blocks of each
// size.
#pragma once

#include <cstddef>

namespace monolith {

// Returns at least `bytes` bytes, uninitialised, 64-byte aligned. Throws std::bad_alloc.
void* TakeRecycled(size_t bytes);
// REQUIRES: `block` came from TakeRecycled(bytes) with the same size.
void GiveRecycled(void* block, size_t bytes) noexcept;

}  // namespace monolith
