// Reads a range of a file and finds its records in one pass: a piece is scanned and verified by the thread that read
// it, while it is in its cache, in parallel with the other threads and pieces.
//
// A pure function of the file; the caller owns the descriptor and the memory, neither is kept. Thread-safe.
#pragma once

#include <cstdint>
#include <span>

#include "data/frame_scan.h"

namespace monolith {

struct FrameRead {
  uint64_t size = 0;  // valid bytes of the target, those kept included; fewer than its size at the end of the file
  FrameScan scan;     // of those bytes
};

// Fills `target` after its first `kept` bytes, which are valid already, with the bytes of the file from `offset` on,
// and scans it from its start. The result is that of ReadFile followed by ScanFrames, with the end of the file as the
// end of the stream.
//
// REQUIRES: kept <= target.size(). Throws Error: kUnavailable when the operating system reports an error, with its
// reason.
FrameRead ReadFrames(int descriptor, uint64_t offset, std::span<char> target, uint64_t kept, const Framing& framing,
                     uint64_t max_record_bytes);

}  // namespace monolith
