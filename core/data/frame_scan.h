// Finds the records of a byte stream, by the framing of the stream. Byte grammar: docs/formats/framings.md. Pure
// functions; thread-safe. Checksums are verified by all threads of the pool.
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
  kCorruptMark,     // the length that ByteDance Monolith writes to mark damage
  kLengthChecksum,  // TFRecord: the checksum of the length is wrong
  kChecksum,        // TFRecord: the checksum of the payload is wrong
};

struct FrameScan {
  std::vector<int64_t> spans;  // offset and length of each payload in the buffer, alternating
  uint64_t consumed = 0;       // offset of the first record that is not in `spans`
  uint64_t wanted = 0;         // minimum number of bytes from there on that the next step needs; 0 at a clean end
  FrameProblem problem = FrameProblem::kNone;
  std::string reason;
  // Offset at which to resume after a problem, may lie after the buffer; that of the record itself when it is unknown.
  uint64_t resume = 0;
};

struct ScanLimits {
  uint64_t max_record_bytes = 0;
  uint64_t max_records = 0;
};

// Scans bytes[begin:] up to the first problem, the limit of records, or the first incomplete record. With `at_end` no
// more bytes follow, and such a record is truncated. REQUIRES: begin <= bytes.size().
FrameScan ScanFrames(std::string_view bytes, uint64_t begin, const Framing& framing, bool at_end,
                     const ScanLimits& limits);

// Returns the first offset from `begin` on at which a TFRecord head verifies; bytes.size() - 11, or begin if that is
// larger, when there is none: the bytes from there on may be the start of one.
uint64_t FindTfRecord(std::string_view bytes, uint64_t begin);

}  // namespace monolith
