// Reads a stretch of an open file, on all threads: copies out of the page cache run side by side.
//
// A pure function of the file; the caller owns the descriptor and the memory, neither is kept. Any thread may call it.
#pragma once

#include <cstdint>
#include <span>

namespace monolith {

// Fills `target` with the bytes of the file from `offset` on, and returns how many there were: all, or less at its end.
// The place of the descriptor is neither used nor moved.
//
// Throws Error: kUnavailable when the operating system refuses, with its reason.
uint64_t ReadFile(int descriptor, uint64_t offset, std::span<char> target);

// The same on the calling thread alone.
uint64_t ReadOnThisThread(int descriptor, uint64_t offset, std::span<char> target);

}  // namespace monolith
