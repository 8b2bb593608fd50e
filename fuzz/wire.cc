// Frames between processes. Input: whether to correct headers, the position at which the stream is split, then the
// stream. A socket delivers it in two pieces. The frames must be those of the grammar, and every head and body is then
// decoded as each type of message.
#include <sys/socket.h>

#include <algorithm>
#include <vector>

#include "format/crc32c.h"
#include "input.h"
#include "ps/row_messages.h"
#include "rpc/frame_stream.h"
#include "rpc/protocol.h"
#include "table/distinct_ids.h"

namespace monolith {
namespace {

constexpr rpc::FrameLimits kLimits{1 << 12, 1 << 14};
constexpr size_t kMostBytes = 1 << 16;  // fits into the socket

struct Parts {
  rpc::FrameHeader header;
  std::string head;
  std::string body;
  bool operator==(const Parts&) const = default;
};

// Corrects magic number, version and checksum, which a fuzzer cannot guess.
void Sign(std::string* stream) {
  for (size_t at = 0; stream->size() - at >= rpc::kHeaderBytes;) {
    char* header = stream->data() + at;
    rpc::FrameHeader read;
    std::memcpy(&read.kind, header + 6, 2);
    std::memcpy(&read.call, header + 8, 8);
    std::memcpy(&read.body_bytes, header + 16, 8);
    std::memcpy(&read.head_bytes, header + 24, 4);
    const rpc::HeaderBytes right = rpc::EncodeHeader(read);
    std::memcpy(header, right.data(), right.size());
    at += rpc::kHeaderBytes;
    if (read.head_bytes > stream->size() - at || read.body_bytes > stream->size() - at - read.head_bytes) return;
    at += read.head_bytes + read.body_bytes;
  }
}

// Reads the frames of a stream by the grammar; returns true if the last frame is refused.
bool ReadPlainly(std::string_view stream, std::vector<Parts>* frames) {
  while (stream.size() >= rpc::kHeaderBytes) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(stream.data());
    rpc::FrameHeader header;
    try {
      header = rpc::DecodeHeader(std::span<const uint8_t, rpc::kHeaderBytes>(bytes, rpc::kHeaderBytes), kLimits);
    } catch (const Error&) {
      return true;
    }
    stream.remove_prefix(rpc::kHeaderBytes);
    if (header.head_bytes + header.body_bytes > stream.size()) return false;
    frames->push_back({header, std::string(stream.substr(0, header.head_bytes)),
                       std::string(stream.substr(header.head_bytes, header.body_bytes))});
    stream.remove_prefix(header.head_bytes + header.body_bytes);
  }
  return false;
}

// Reads the frames through a socket that delivers the stream in two pieces.
bool ReceiveFrames(std::string_view stream, size_t cut, std::vector<Parts>* frames) {
  int ends[2];
  Expect(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  rpc::Stream in{rpc::Socket(ends[0])};
  const rpc::Socket out(ends[1]);
  rpc::FrameReceiver receiver;
  for (const std::string_view piece : {stream.substr(0, cut), stream.substr(cut)}) {
    if (!piece.empty()) {
      Expect(send(out.descriptor(), piece.data(), piece.size(), 0) == static_cast<ssize_t>(piece.size()));
    }
    try {
      while (receiver.Receive(in, kLimits, nullptr) == rpc::FrameReceiver::State::kComplete) {
        const rpc::Frame& frame = receiver.frame();
        frames->push_back({frame.header, frame.head, std::string(frame.body.begin(), frame.body.end())});
        receiver.Reset();
      }
    } catch (const Error& error) {
      Expect(error.code() == Code::kDataLoss || error.code() == Code::kFailedPrecondition ||
             error.code() == Code::kResourceExhausted);
      return true;
    }
  }
  return false;
}

void ReadMessages(const Parts& frame) {
  const std::initializer_list<Code> refusals = {Code::kDataLoss, Code::kInvalidArgument};
  // Copies without spare capacity, so that the address sanitizer detects a read past the end; aligned as in a server.
  const std::vector<char> head_bytes(frame.head.begin(), frame.head.end());
  const std::string_view head(head_bytes.data(), head_bytes.size());
  const std::vector<uint8_t> body(frame.body.begin(), frame.body.end());
  const std::vector<uint8_t> has_wide = {0, 1};
  MayRefuse(refusals, [&] { Expect(rpc::EncodeGreeting(rpc::DecodeGreeting(head)) == head); });
  MayRefuse(refusals, [&] {
    const Error error = rpc::DecodeError(head);
    Expect(rpc::EncodeError(error.code(), error.what()).size() <= head.size());  // a text may have zeros in it
  });
  MayRefuse(refusals, [&] { ps::DecodePullAnswer(head); });
  MayRefuse(refusals, [&] { ps::DecodePushAnswer(head); });
  MayRefuse(refusals, [&] { ps::DecodeDropQuestion(head); });
  MayRefuse(refusals, [&] { ps::DecodeWhereQuestion(head); });
  MayRefuse(refusals, [&] { ps::DecodeWhereAnswer(head); });
  MayRefuse(refusals, [&] { ps::DecodeJoinAnswer(head); });
  MayRefuse(refusals, [&] {
    const Plan plan = PlanOfDistinct(ps::PullBodyOf(ps::DecodePullQuestion(head), body), has_wide, {0, 1024});
    Expect(plan.table_splits.back() == plan.num_unique());
  });
  MayRefuse(refusals, [&] {
    const ps::PushQuestion question = ps::DecodePushQuestion(head);
    const ps::PushBody parts = ps::PushBodyOf(question, body);
    Expect(parts.gradients.size() == question.num_values * (question.half ? 2 : 4));
    PlanOfDistinct(parts.ids, has_wide, {100, 900});
  });
}

}  // namespace
}  // namespace monolith

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace monolith;
  if (size > kMostBytes) return 0;
  Input input(data, size);
  const bool is_signed = input.Byte() % 2 == 0;
  const uint64_t part = input.Byte();
  std::string stream(input.rest());
  if (is_signed) Sign(&stream);
  std::vector<Parts> expected, received;
  const bool is_refused = ReadPlainly(stream, &expected);
  Expect(ReceiveFrames(stream, stream.size() * part / 255, &received) == is_refused && received == expected);
  for (const Parts& frame : received) ReadMessages(frame);
  return 0;
}
