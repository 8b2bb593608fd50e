#include "rpc/frame_stream.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace monolith::rpc {
namespace {

constexpr size_t kMaxParts = 64;                 // per system call; the limit of the system is 1,024
constexpr size_t kMaxReceive = size_t{8} << 20;  // at a time, so that one connection does not occupy a thread for long
// Low-water mark within a large body: waking up for a few bytes at a time costs more than receiving them.
constexpr size_t kWorthWaking = size_t{1} << 20;

constexpr size_t kFirstOfHead = 4096;  // most heads are smaller

std::span<const uint8_t> AsBytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

FrameReceiver::State FrameReceiver::Receive(Stream& stream, const FrameLimits& limits, const Placer& place) {
  for (size_t taken = 0; taken < kMaxReceive;) {
    const std::span<uint8_t> missing = Missing();
    const Transfer transfer = stream.Receive(missing);
    if (transfer.kind == Transfer::kBroken) return State::kBroken;
    if (transfer.kind == Transfer::kMustWait) break;
    taken += transfer.bytes;
    received_in_part_ += transfer.bytes;
    received_ += transfer.bytes;
    num_received_ += transfer.bytes;
    if (transfer.bytes == missing.size() && Advance(limits, place)) {
      WakeFor(stream, 1);  // the next frame may be small
      return State::kComplete;
    }
  }
  // Also when the limit of one call is reached: the missing bytes may be fewer than the low-water mark set before.
  WakeFor(stream, part_ == Part::kBody ? std::min(Missing().size(), kWorthWaking) : 1);
  return State::kWaits;
}

void FrameReceiver::WakeFor(const Stream& stream, size_t bytes) {
  if (bytes == wakes_for_) return;
  stream.SetReceiveLowWater(bytes);
  wakes_for_ = bytes;
}

std::span<uint8_t> FrameReceiver::Missing() {
  std::span<uint8_t> whole = place_;
  if (part_ == Part::kHeader) whole = header_bytes_;
  if (part_ == Part::kHead) whole = {reinterpret_cast<uint8_t*>(frame_.head.data()), frame_.head.size()};
  return whole.subspan(received_in_part_);
}

bool FrameReceiver::Advance(const FrameLimits& limits, const Placer& place) {
  // The head grows as it is received: a false size costs nothing.
  if (part_ == Part::kHead && frame_.head.size() < frame_.header.head_bytes) {
    frame_.head.resize(std::min<size_t>(2 * frame_.head.size(), frame_.header.head_bytes));
    return false;
  }
  received_in_part_ = 0;
  if (part_ == Part::kHeader) {
    frame_.header = DecodeHeader(header_bytes_, limits);
    frame_.head.resize(std::min<size_t>(kFirstOfHead, frame_.header.head_bytes));
    part_ = Part::kHead;
    if (frame_.header.head_bytes > 0) return false;
  }
  if (part_ == Part::kHead) {
    const uint64_t bytes = frame_.header.body_bytes;
    place_ = place ? place(frame_.header, frame_.head) : std::span<uint8_t>();
    if (place_.empty() && bytes > 0) {
      frame_.own_body = Bytes(bytes);
      place_ = {frame_.own_body.data(), frame_.own_body.size()};
    }
    MONOLITH_CHECK(place_.size() == bytes);
    frame_.body = place_;
    part_ = Part::kBody;
    if (bytes > 0) return false;
  }
  return true;
}

void FrameReceiver::Reset() {
  part_ = Part::kHeader;
  received_in_part_ = received_ = 0;
  frame_ = {};
  place_ = {};
}

uint64_t OutgoingFrame::NumBodyBytes() const {
  uint64_t bytes = 0;
  for (const std::span<const uint8_t> part : body) bytes += part.size();
  return bytes;
}

void FrameSender::Add(OutgoingFrame frame) {
  const HeaderBytes header =
      EncodeHeader({frame.kind, frame.call, static_cast<uint32_t>(frame.head.size()), frame.NumBodyBytes()});
  queue_.push_back({std::move(frame), header});
}

FrameSender::State FrameSender::Send(Stream& stream) {
  while (!queue_.empty()) {
    const std::vector<iovec> parts = Parts();
    const Transfer transfer = stream.Send(parts);
    if (transfer.kind == Transfer::kBroken) return State::kBroken;
    if (transfer.kind == Transfer::kMustWait) return State::kWaits;
    sent_of_first_ += transfer.bytes;
    num_sent_ += transfer.bytes;
    const auto total = [](const Queued& queued) {
      return kHeaderBytes + queued.frame.head.size() + queued.frame.NumBodyBytes();
    };
    while (!queue_.empty() && sent_of_first_ >= total(queue_.front())) {
      sent_of_first_ -= total(queue_.front());
      queue_.pop_front();
    }
  }
  return State::kDone;
}

std::vector<iovec> FrameSender::Parts() const {
  std::vector<iovec> parts;
  uint64_t skipped = sent_of_first_;
  const auto add = [&](std::span<const uint8_t> bytes) {
    const uint64_t skip = std::min<uint64_t>(skipped, bytes.size());
    skipped -= skip;
    if (skip < bytes.size()) parts.push_back({const_cast<uint8_t*>(bytes.data()) + skip, bytes.size() - skip});
  };
  for (const Queued& queued : queue_) {
    add(queued.header);
    add(AsBytes(queued.frame.head));
    for (const std::span<const uint8_t> part : queued.frame.body) {
      if (parts.size() == kMaxParts) return parts;
      add(part);
    }
    if (parts.size() + 2 > kMaxParts) break;
  }
  return parts;
}

void FrameSender::Clear() {
  queue_.clear();
  sent_of_first_ = 0;
}

}  // namespace monolith::rpc
