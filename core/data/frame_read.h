// Reads a stretch of a file and finds its records in one pass: a piece is scanned and verified by the thread that read
// it, while it is in its cache, and beside the other threads, which do the same to other pieces.
//
// A pure function of the file; the caller owns the descriptor and the memory, neither is kept. Any thread may call it.
#pragma once

#include <cstdint>
#include <span>

#include "data/frame_scan.h"

namespace monolith {

struct FrameRead {
  uint64_t size =
      0;           // bytes of the target that are there, those kept included; less than it has at the end of the file
  FrameScan scan;  // of those bytes
};

// Fills `target` behind its first `kept` bytes, which are there already, with the bytes of the file from `offset` on,
// and scans it from its start. The result is that of ReadFile followed by ScanFrames, which takes the end of the file
// for the end of the stream.
//
// REQUIRES: kept <= target.size(). Throws Error: kUnavailable when the operating system refuses, with its reason.
FrameRead ReadFrames(int descriptor, uint64_t offset, std::span<char> target, uint64_t kept, const Framing& framing,
                     uint64_t max_record_bytes);

}  // namespace monolith
