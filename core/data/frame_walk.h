// Steps through the records of a byte stream and verifies their checksums: shared by the scan of bytes in memory and
// the reading of a file. A walk belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "data/frame_scan.h"

namespace monolith {

// Finds records by their heads; payloads are not read. Results go straight into the scan, which it borrows.
class FrameWalk {
 public:
  FrameWalk(const char* bytes, uint64_t begin, const Framing& framing, const ScanLimits& limits, FrameScan* scan)
      : bytes_(bytes), framing_(framing), limits_(limits), scan_(scan) {
    scan_->consumed = begin;
  }

  // Adds the records that lie in bytes[:size], up to the first problem or the limit; with `at_end` no bytes follow. To
  // be called again, with more of the bytes, until there was a problem.
  void GoOn(uint64_t size, bool at_end);

 private:
  bool Step();
  bool Wait(uint64_t wanted);
  bool Problem(FrameProblem problem, uint64_t resume, std::string reason);
  bool Has(uint64_t size, const char* part);
  bool Word(uint64_t* word, const char* part);
  bool Within(uint64_t size, const char* part, uint64_t tail);
  bool SortId(bool is_sized, uint64_t size);
  bool Header();
  bool Prefixed();
  bool TfRecord();
  bool Take(uint64_t length, uint64_t tail);

  const char* bytes_;
  const Framing framing_;
  const ScanLimits limits_;
  FrameScan* scan_;
  uint64_t size_ = 0;
  bool at_end_ = false;
  uint64_t at_ = 0;
  uint64_t records_ = 0;
};

// Returns the index of the first record of `spans` whose payload fails its TFRecord checksum; the number of records
// when none does.
size_t FirstBadChecksum(const char* bytes, std::span<const int64_t> spans);

// Ends a scan before this record, whose checksum is bad.
void CutAtBadChecksum(size_t record, FrameScan* scan);

// Whether a TFRecord head begins here. REQUIRES: 12 bytes are available.
bool IsTfRecordHead(const char* head);

}  // namespace monolith
