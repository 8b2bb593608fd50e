// Reads a range of an open file with all threads: copies out of the page cache run in parallel.
//
// A pure function of the file; the caller owns the descriptor and the memory, neither is kept. Thread-safe.
#pragma once

#include <cstdint>
#include <span>

namespace monolith {

// Fills `target` with the bytes of the file from `offset` on, and returns their number: all, or fewer at its end. The
// position of the descriptor is neither used nor changed.
//
// Throws Error: kUnavailable when the operating system reports an error, with its reason.
uint64_t ReadFile(int descriptor, uint64_t offset, std::span<char> target);

// As above, on the calling thread alone.
uint64_t ReadOnThisThread(int descriptor, uint64_t offset, std::span<char> target);

}  // namespace monolith
