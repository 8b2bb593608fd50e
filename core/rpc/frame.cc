#include "rpc/frame.h"

#include <bit>
#include <cstring>
#include <string>

#include "base/error.h"
#include "format/crc32c.h"

namespace monolith::rpc {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are little-endian and written without swapping");

struct Layout {
  uint32_t magic;
  uint16_t version;
  uint16_t kind;
  uint64_t call;
  uint64_t body_bytes;
  uint32_t head_bytes;
  uint32_t zero;
  uint32_t crc;  // of everything before it
  uint32_t end;  // zero
};
static_assert(sizeof(Layout) == kHeaderBytes && offsetof(Layout, crc) == 32);

[[noreturn]] void TooLarge(const char* part, uint64_t bytes, uint64_t limit) {
  throw Error(Code::kResourceExhausted, std::string("frame: its ") + part + " has " + std::to_string(bytes) +
                                            " bytes, at most " + std::to_string(limit) + " are taken here");
}

}  // namespace

HeaderBytes EncodeHeader(const FrameHeader& header) {
  Layout layout{kFrameMagic, kFrameVersion, header.kind, header.call, header.body_bytes, header.head_bytes, 0, 0, 0};
  layout.crc = Crc32c(&layout, offsetof(Layout, crc));
  HeaderBytes bytes;
  std::memcpy(bytes.data(), &layout, sizeof(layout));
  return bytes;
}

FrameHeader DecodeHeader(std::span<const uint8_t, kHeaderBytes> bytes, const FrameLimits& limits) {
  Layout layout;
  std::memcpy(&layout, bytes.data(), sizeof(layout));
  if (layout.magic != kFrameMagic) {
    throw Error(Code::kDataLoss, "frame: these bytes do not begin one; is the other side a program of this project?");
  }
  if (layout.crc != Crc32c(&layout, offsetof(Layout, crc)) || layout.zero != 0 || layout.end != 0) {
    throw Error(Code::kDataLoss, "frame: the header is damaged");
  }
  if (layout.version != kFrameVersion) {
    throw Error(Code::kFailedPrecondition, "frame: the other side speaks version " + std::to_string(layout.version) +
                                               ", this one " + std::to_string(kFrameVersion) +
                                               "; install the same release on both");
  }
  if (layout.head_bytes > limits.head_bytes) TooLarge("head", layout.head_bytes, limits.head_bytes);
  if (layout.body_bytes > limits.body_bytes) TooLarge("body", layout.body_bytes, limits.body_bytes);
  return {layout.kind, layout.call, layout.head_bytes, layout.body_bytes};
}

}  // namespace monolith::rpc
