// Frames on a non-blocking stream: a receiver that reads a frame piece by piece, and a queue of outgoing frames.
//
// Each belongs to one thread at a time and to one stream, which it does not own.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "memory/buffer.h"
#include "rpc/frame.h"
#include "rpc/stream.h"

namespace monolith::rpc {

// Uninitialised bytes, reused by later frames. Bytes that are never written are never backed by memory, so that a false
// size costs nothing.
using Bytes = Buffer<uint8_t>;

// A received frame.
struct Frame {
  FrameHeader header;
  std::string head;
  Bytes own_body;  // used if the caller gave no destination
  std::span<const uint8_t> body;
};

class FrameReceiver {
 public:
  enum class State { kWaits, kComplete, kBroken };
  // Returns the destination of the body of a frame, whose head is complete; empty: memory of the frame itself. The
  // destination has exactly header.body_bytes bytes.
  using Placer = std::function<std::span<uint8_t>(const FrameHeader& header, const std::string& head)>;

  // Reads the available bytes. kComplete: frame() is complete, until Reset() and the next call. Throws what
  // DecodeHeader and the placer throw; the connection cannot be used after that.
  State Receive(Stream& stream, const FrameLimits& limits, const Placer& place);
  Frame& frame() { return frame_; }
  // Whether a frame is partly received.
  bool is_inside() const { return received_ > 0; }
  uint64_t num_received() const { return num_received_; }  // bytes, of all frames
  void Reset();

 private:
  enum class Part { kHeader, kHead, kBody };
  // The missing bytes of the current part.
  std::span<uint8_t> Missing();
  // Makes the stream readable from this number of bytes on.
  void WakeFor(const Stream& stream, size_t bytes);
  // Moves to the next part that has bytes; true: there is none.
  bool Advance(const FrameLimits& limits, const Placer& place);

  Part part_ = Part::kHeader;
  size_t received_in_part_ = 0;
  uint64_t received_ = 0;
  uint64_t num_received_ = 0;
  size_t wakes_for_ = 1;
  HeaderBytes header_bytes_;
  Frame frame_;
  std::span<uint8_t> place_;
};

// An outgoing frame. The body's parts are read when they are sent; `owner` keeps them alive until then.
struct OutgoingFrame {
  uint16_t kind = 0;
  uint64_t call = 0;
  std::string head;
  std::vector<std::span<const uint8_t>> body;
  std::shared_ptr<const void> owner;

  uint64_t NumBodyBytes() const;
};

class FrameSender {
 public:
  enum class State { kDone, kWaits, kBroken };

  void Add(OutgoingFrame frame);
  // Sends as much as possible now; kDone: everything.
  State Send(Stream& stream);
  bool empty() const { return queue_.empty(); }
  uint64_t num_sent() const { return num_sent_; }  // bytes, of all frames
  void Clear();

 private:
  struct Queued {
    OutgoingFrame frame;
    HeaderBytes header;
  };
  std::vector<iovec> Parts() const;

  std::deque<Queued> queue_;
  uint64_t sent_of_first_ = 0;
  uint64_t num_sent_ = 0;
};

}  // namespace monolith::rpc
