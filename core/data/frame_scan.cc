#include "data/frame_scan.h"

#include <algorithm>
#include <span>

#include "base/thread_pool.h"
#include "data/frame_walk.h"

namespace monolith {
namespace {

constexpr uint64_t kBytesPerTask = uint64_t{128} << 10;

// Checks the payloads of all records found, with all threads, and ends the scan before the first bad one.
void VerifyPayloads(std::string_view bytes, uint64_t begin, FrameScan* scan) {
  const std::span<const int64_t> spans(scan->spans);
  const size_t records = spans.size() / 2;
  const uint64_t size = scan->consumed - begin;
  const auto tasks = static_cast<int>(std::clamp<uint64_t>(size / kBytesPerTask, 1, std::max<size_t>(records, 1)));
  std::vector<size_t> bad(static_cast<size_t>(tasks), records);
  ParallelFor(tasks, [&](int task) {
    const auto number = static_cast<size_t>(task);
    const size_t first = records * number / bad.size();
    const size_t end = records * (number + 1) / bad.size();
    const size_t found = first + FirstBadChecksum(bytes.data(), spans.subspan(2 * first, 2 * (end - first)));
    if (found < end) bad[number] = found;
  });
  const size_t first = *std::ranges::min_element(bad);
  if (first < records) CutAtBadChecksum(first, scan);
}

}  // namespace

FrameScan ScanFrames(std::string_view bytes, uint64_t begin, const Framing& framing, bool at_end,
                     const ScanLimits& limits) {
  FrameScan scan;
  FrameWalk(bytes.data(), begin, framing, limits, &scan).GoOn(bytes.size(), at_end);
  if (framing.Has(Framing::kTfRecord)) VerifyPayloads(bytes, begin, &scan);
  return scan;
}

uint64_t FindTfRecord(std::string_view bytes, uint64_t begin) {
  uint64_t at = begin;
  while (at + kTfRecordHeadBytes <= bytes.size() && !IsTfRecordHead(bytes.data() + at)) ++at;
  return at;
}

}  // namespace monolith
