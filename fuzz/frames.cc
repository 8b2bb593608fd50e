// Streams of framed records. Input: the framing, the position at which the stream is split, then the stream. Read in
// one piece or in two, it must return the same records.
#include <algorithm>
#include <vector>

#include "data/frame_scan.h"
#include "format/crc32c.h"
#include "input.h"

namespace monolith {
namespace {

constexpr uint32_t kFramings[] = {0, 1, 2, 4, 8, 12, 16, 20, 24, 28};
constexpr ScanLimits kLimits{1 << 16, 1 << 20};

// Corrects the checksums of a TFRecord stream, which a fuzzer cannot guess.
void Sign(std::string* stream) {
  for (size_t at = 0; stream->size() - at >= kTfRecordHeadBytes;) {
    uint64_t length;
    std::memcpy(&length, stream->data() + at, 8);
    const uint32_t head = MaskCrc(Crc32c(stream->data() + at, 8));
    std::memcpy(stream->data() + at + 8, &head, 4);
    at += kTfRecordHeadBytes;
    if (length > stream->size() - at || stream->size() - at - length < kTfRecordTailBytes) return;
    const uint32_t tail = MaskCrc(Crc32c(stream->data() + at, length));
    std::memcpy(stream->data() + at + length, &tail, 4);
    at += length + kTfRecordTailBytes;
  }
}

void CheckSpans(const FrameScan& scan, size_t size) {
  uint64_t end = 0;
  Expect(scan.spans.size() % 2 == 0 && scan.consumed <= size);
  for (size_t i = 0; i < scan.spans.size(); i += 2) {
    const auto begin = static_cast<uint64_t>(scan.spans[i]), length = static_cast<uint64_t>(scan.spans[i + 1]);
    Expect(begin >= end && length <= size && begin <= size - length);
    end = begin + length;
  }
  Expect(scan.problem == FrameProblem::kNone || !scan.reason.empty());
}

}  // namespace
}  // namespace monolith

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace monolith;
  Input input(data, size);
  const uint8_t choice = input.Byte();
  const uint64_t part = input.Byte();
  std::string stream(input.rest());
  const Framing framing(kFramings[choice % std::size(kFramings)]);
  if (framing.Has(Framing::kTfRecord) && choice < 128) Sign(&stream);
  const FrameScan whole = ScanFrames(stream, 0, framing, true, kLimits);
  CheckSpans(whole, stream.size());
  const std::string_view first = std::string_view(stream).substr(0, stream.size() * part / 255);
  FrameScan pieces = ScanFrames(first, 0, framing, first.size() == stream.size(), kLimits);
  CheckSpans(pieces, first.size());
  if (pieces.problem == FrameProblem::kNone) {
    const FrameScan rest = ScanFrames(stream, pieces.consumed, framing, true, kLimits);
    pieces.spans.insert(pieces.spans.end(), rest.spans.begin(), rest.spans.end());
    Expect(pieces.spans == whole.spans && rest.problem == whole.problem && rest.consumed == whole.consumed);
  }
  Expect(FindTfRecord(stream, 0) <= stream.size());
  return 0;
}
