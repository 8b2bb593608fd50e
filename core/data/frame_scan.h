// Where the records of a byte stream lie, by the framing that the stream was written with. Byte grammar:
// docs/formats/framings.md. Pure functions, callable from any thread; checksums are verified by all threads of the
// pool.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/framing.h"

namespace monolith {

enum class FrameProblem {
  kNone,
  kTruncated,       // the stream ends inside a record
  kOversized,       // a length above the limit; wrong framing looks like this
  kCorruptMark,     // the length that the original writes where it knows of damage
  kLengthChecksum,  // TFRecord: the length cannot be believed
  kChecksum,        // TFRecord: the payload is not what was written
};

struct FrameScan {
  std::vector<int64_t> spans;  // offset and length of each payload in the buffer, in turns
  uint64_t consumed = 0;       // where the first record that is not in `spans` begins
  uint64_t wanted = 0;         // bytes from there on that the next step needs at least; 0 at a clean end
  FrameProblem problem = FrameProblem::kNone;
  std::string reason;
  // Where to go on after a problem, may lie behind the buffer; the record's own place when nothing tells.
  uint64_t resume = 0;
};

struct ScanLimits {
  uint64_t max_record_bytes = 0;
  uint64_t max_records = 0;
};

// Scans bytes[begin:] up to the first problem, the limit of records, or the first record that is not there in full.
// With `at_end` no more bytes follow, and such a record is truncated. REQUIRES: begin <= bytes.size().
FrameScan ScanFrames(std::string_view bytes, uint64_t begin, const Framing& framing, bool at_end,
                     const ScanLimits& limits);

// First place from `begin` on where a TFRecord head verifies; bytes.size() - 11, or begin if that is larger, when there
// is none: the bytes from there on may be the start of one.
uint64_t FindTfRecord(std::string_view bytes, uint64_t begin);

}  // namespace monolith
