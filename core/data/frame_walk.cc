#include "data/frame_walk.h"

#include <cstring>
#include <utility>

#include "format/crc32c.h"

namespace monolith {
namespace {

constexpr uint64_t kCorruptLength = 0xfefefefeu;

template <typename Number>
Number Load(const char* at) {
  Number number;
  std::memcpy(&number, at, sizeof(number));
  return number;
}

bool ChecksumIs(const char* bytes, size_t size, uint32_t masked) { return MaskCrc(Crc32c(bytes, size)) == masked; }

}  // namespace

void FrameWalk::GoOn(uint64_t size, bool at_end) {
  size_ = size;
  at_end_ = at_end;
  scan_->wanted = 0;
  while (records_ < limits_.max_records && Step()) ++records_;
}

// Reads one record; false at a problem, at the end, or if more bytes are needed.
bool FrameWalk::Step() {
  at_ = scan_->consumed;
  if (at_ == size_) return Wait(at_end_ ? 0 : 1);
  return framing_.Has(Framing::kTfRecord) ? TfRecord() : Prefixed();
}

bool FrameWalk::Wait(uint64_t wanted) {
  scan_->wanted = wanted;
  return false;
}

bool FrameWalk::Problem(FrameProblem problem, uint64_t resume, std::string reason) {
  scan_->problem = problem;
  scan_->resume = resume;
  scan_->reason = std::move(reason);
  return false;
}

// Whether `size` bytes are available at at_; otherwise the scan ends, for now or with a problem.
bool FrameWalk::Has(uint64_t size, const char* part) {
  const uint64_t left = size_ - at_;
  if (size <= left) return true;
  if (!at_end_) return Wait(at_ - scan_->consumed + size);
  return Problem(FrameProblem::kTruncated, size_,
                 std::string(part) + " of " + std::to_string(size) + " bytes is cut off: " + std::to_string(left) +
                     " are left (truncated)");
}

bool FrameWalk::Word(uint64_t* word, const char* part) {
  if (!Has(8, part)) return false;
  *word = Load<uint64_t>(bytes_ + at_);
  at_ += 8;
  return true;
}

bool FrameWalk::Within(uint64_t size, const char* part, uint64_t tail) {
  if (size == kCorruptLength) {
    return Problem(FrameProblem::kCorruptMark, scan_->consumed,
                   std::string(part) + " has the length 0xfefefefe, a mark of damage");
  }
  if (size <= limits_.max_record_bytes) return true;
  const bool adds_up = size < (uint64_t{1} << 62);
  return Problem(FrameProblem::kOversized, adds_up ? at_ + size + tail : scan_->consumed,
                 std::string(part) + " of " + std::to_string(size) + " bytes, the limit is " +
                     std::to_string(limits_.max_record_bytes));
}

bool FrameWalk::SortId(bool is_sized, uint64_t size) {
  if (!is_sized && !Word(&size, "length of a sort id")) return false;
  if (!Within(size, "sort id", 0) || !Has(size, "sort id")) return false;
  at_ += size;
  return true;
}

bool FrameWalk::Header() {
  uint64_t word = 0;
  if (framing_.Has(Framing::kLagrangex)) return Word(&word, "lagrangex header");
  bool is_sized = false;
  uint64_t size = 0;
  if (framing_.Has(Framing::kKafkaDumpPrefix)) {
    if (!Word(&size, "kafka dump prefix")) return false;
    is_sized = size != 0;
    if (!is_sized && !Word(&word, "kafka dump prefix")) return false;
  }
  if ((framing_.Has(Framing::kSortId) || is_sized) && !SortId(is_sized, size)) return false;
  return !framing_.Has(Framing::kKafkaDump) || Word(&word, "kafka dump header");
}

bool FrameWalk::Prefixed() {
  uint64_t length = 0;
  if (!Header() || !Word(&length, "length of a record") || !Within(length, "record", 0) || !Has(length, "record"))
    return false;
  return Take(length, 0);
}

bool FrameWalk::TfRecord() {
  if (!Has(kTfRecordHeadBytes, "record head")) return false;
  const char* head = bytes_ + at_;
  const auto length = Load<uint64_t>(head);
  if (!ChecksumIs(head, 8, Load<uint32_t>(head + 8))) {
    return Problem(FrameProblem::kLengthChecksum, at_ + 1,
                   "checksum of a record length does not match: not a TFRecord file, or damaged");
  }
  at_ += kTfRecordHeadBytes;
  if (!Within(length, "record", kTfRecordTailBytes) || !Has(length + kTfRecordTailBytes, "record with its checksum"))
    return false;
  return Take(length, kTfRecordTailBytes);
}

bool FrameWalk::Take(uint64_t length, uint64_t tail) {
  scan_->spans.push_back(static_cast<int64_t>(at_));
  scan_->spans.push_back(static_cast<int64_t>(length));
  scan_->consumed = at_ + length + tail;
  return true;
}

size_t FirstBadChecksum(const char* bytes, std::span<const int64_t> spans) {
  for (size_t at = 0; at < spans.size(); at += 2) {
    const char* payload = bytes + spans[at];
    const auto length = static_cast<size_t>(spans[at + 1]);
    if (!ChecksumIs(payload, length, Load<uint32_t>(payload + length))) return at / 2;
  }
  return spans.size() / 2;
}

void CutAtBadChecksum(size_t record, FrameScan* scan) {
  const auto at = static_cast<uint64_t>(scan->spans[2 * record]);
  scan->consumed = at - kTfRecordHeadBytes;
  scan->resume = at + static_cast<uint64_t>(scan->spans[2 * record + 1]) + kTfRecordTailBytes;
  scan->problem = FrameProblem::kChecksum;
  scan->reason = "checksum of a record does not match";
  scan->wanted = 0;
  scan->spans.resize(2 * record);
}

bool IsTfRecordHead(const char* head) { return ChecksumIs(head, 8, Load<uint32_t>(head + 8)); }

}  // namespace monolith
