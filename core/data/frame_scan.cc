#include "data/frame_scan.h"

#include <algorithm>
#include <cstring>

#include "base/thread_pool.h"
#include "format/crc32c.h"

namespace monolith {
namespace {

constexpr uint64_t kCorruptLength = 0xfefefefeu;
constexpr uint64_t kTfHead = 12;  // u64 length, u32 masked checksum of it
constexpr uint64_t kTfTail = 4;   // u32 masked checksum of the payload
constexpr uint64_t kBytesPerTask = uint64_t{128} << 10;

template <typename Number>
Number Load(const char* at) {
  Number number;
  std::memcpy(&number, at, sizeof(number));
  return number;
}

bool ChecksumIs(const char* bytes, size_t size, uint32_t masked) { return MaskCrc(Crc32c(bytes, size)) == masked; }

// Reads one frame after another; what it learns goes straight into the scan.
class Scanner {
 public:
  Scanner(std::string_view bytes, uint64_t begin, const Framing& framing, bool at_end, const ScanLimits& limits,
          FrameScan* scan)
      : bytes_(bytes), framing_(framing), at_end_(at_end), limits_(limits), scan_(scan) {
    scan_->consumed = begin;
  }

  // One record; false at a problem, at the end, or where more bytes are needed.
  bool Step() {
    at_ = scan_->consumed;
    if (at_ == bytes_.size()) return Wait(at_end_ ? 0 : 1);
    return framing_.tfrecord ? TfRecord() : Prefixed();
  }

 private:
  bool Wait(uint64_t wanted) {
    scan_->wanted = wanted;
    return false;
  }

  bool Problem(FrameProblem problem, uint64_t resume, std::string reason) {
    scan_->problem = problem;
    scan_->resume = resume;
    scan_->reason = std::move(reason);
    return false;
  }

  // Whether `size` bytes are there at at_; otherwise the scan ends, for now or with a problem.
  bool Has(uint64_t size, const char* part) {
    const uint64_t left = bytes_.size() - at_;
    if (size <= left) return true;
    if (!at_end_) return Wait(at_ - scan_->consumed + size);
    return Problem(FrameProblem::kTruncated, bytes_.size(),
                   std::string(part) + " of " + std::to_string(size) + " bytes is cut off: " + std::to_string(left) +
                       " are left (truncated)");
  }

  bool Word(uint64_t* word, const char* part) {
    if (!Has(8, part)) return false;
    *word = Load<uint64_t>(bytes_.data() + at_);
    at_ += 8;
    return true;
  }

  bool Within(uint64_t size, const char* part, uint64_t tail) {
    if (size == kCorruptLength) {
      return Problem(FrameProblem::kCorruptMark, scan_->consumed, std::string(part) + " has the length 0xfefefefe, a mark of damage");
    }
    if (size <= limits_.max_record_bytes) return true;
    const bool adds_up = size < (uint64_t{1} << 62);
    return Problem(FrameProblem::kOversized, adds_up ? at_ + size + tail : scan_->consumed,
                   std::string(part) + " of " + std::to_string(size) + " bytes, the limit is " +
                       std::to_string(limits_.max_record_bytes));
  }

  bool SortId(bool is_sized, uint64_t size) {
    if (!is_sized && !Word(&size, "length of a sort id")) return false;
    if (!Within(size, "sort id", 0) || !Has(size, "sort id")) return false;
    at_ += size;
    return true;
  }

  bool Header() {
    uint64_t word = 0;
    if (framing_.lagrangex) return Word(&word, "lagrangex header");
    bool is_sized = false;
    uint64_t size = 0;
    if (framing_.kafka_dump_prefix) {
      if (!Word(&size, "kafka dump prefix")) return false;
      is_sized = size != 0;
      if (!is_sized && !Word(&word, "kafka dump prefix")) return false;
    }
    if ((framing_.sort_id || is_sized) && !SortId(is_sized, size)) return false;
    return !framing_.kafka_dump || Word(&word, "kafka dump header");
  }

  bool Prefixed() {
    uint64_t length = 0;
    if (!Header() || !Word(&length, "length of a record") || !Within(length, "record", 0) || !Has(length, "record"))
      return false;
    return Take(length, 0);
  }

  bool TfRecord() {
    if (!Has(kTfHead, "record head")) return false;
    const char* head = bytes_.data() + at_;
    const auto length = Load<uint64_t>(head);
    if (!ChecksumIs(head, 8, Load<uint32_t>(head + 8))) {
      return Problem(FrameProblem::kLengthChecksum, at_ + 1,
                     "checksum of a record length does not match: not a TFRecord file, or damaged");
    }
    at_ += kTfHead;
    if (!Within(length, "record", kTfTail) || !Has(length + kTfTail, "record with its checksum")) return false;
    return Take(length, kTfTail);
  }

  bool Take(uint64_t length, uint64_t tail) {
    scan_->spans.push_back(static_cast<int64_t>(at_));
    scan_->spans.push_back(static_cast<int64_t>(length));
    scan_->consumed = at_ + length + tail;
    return true;
  }

  std::string_view bytes_;
  const Framing& framing_;
  bool at_end_;
  const ScanLimits& limits_;
  FrameScan* scan_;
  uint64_t at_ = 0;
};

// Number of the first record in [begin, end) whose payload fails its checksum; end when none does.
size_t FirstBad(std::string_view bytes, const std::vector<int64_t>& spans, size_t begin, size_t end) {
  for (size_t record = begin; record < end; ++record) {
    const char* payload = bytes.data() + spans[2 * record];
    const auto length = static_cast<size_t>(spans[2 * record + 1]);
    if (!ChecksumIs(payload, length, Load<uint32_t>(payload + length))) return record;
  }
  return end;
}

// Checks the payloads of all records found, on all threads, and cuts the scan off in front of the first bad one.
void VerifyPayloads(std::string_view bytes, uint64_t begin, FrameScan* scan) {
  const size_t records = scan->spans.size() / 2;
  const uint64_t size = scan->consumed - begin;
  const auto tasks = static_cast<int>(std::clamp<uint64_t>(size / kBytesPerTask, 1, std::max<size_t>(records, 1)));
  std::vector<size_t> bad(static_cast<size_t>(tasks), records);
  ParallelFor(tasks, [&](int task) {
    const auto number = static_cast<size_t>(task);
    const size_t end = records * (number + 1) / bad.size();
    const size_t found = FirstBad(bytes, scan->spans, records * number / bad.size(), end);
    if (found < end) bad[number] = found;
  });
  const size_t first = *std::ranges::min_element(bad);
  if (first == records) return;
  const auto at = static_cast<uint64_t>(scan->spans[2 * first]);
  scan->consumed = at - kTfHead;
  scan->resume = at + static_cast<uint64_t>(scan->spans[2 * first + 1]) + kTfTail;
  scan->problem = FrameProblem::kChecksum;
  scan->reason = "checksum of a record does not match";
  scan->wanted = 0;
  scan->spans.resize(2 * first);
}

}  // namespace

FrameScan ScanFrames(std::string_view bytes, uint64_t begin, const Framing& framing, bool at_end,
                     const ScanLimits& limits) {
  FrameScan scan;
  Scanner scanner(bytes, begin, framing, at_end, limits, &scan);
  for (uint64_t records = 0; records < limits.max_records; ++records) {
    if (!scanner.Step()) break;
  }
  if (framing.tfrecord) VerifyPayloads(bytes, begin, &scan);
  return scan;
}

uint64_t FindTfRecord(std::string_view bytes, uint64_t begin) {
  uint64_t at = begin;
  for (; at + kTfHead <= bytes.size(); ++at) {
    const char* head = bytes.data() + at;
    if (ChecksumIs(head, 8, Load<uint32_t>(head + 8))) return at;
  }
  return at;
}

}  // namespace monolith
