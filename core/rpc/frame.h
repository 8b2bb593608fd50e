// A message between processes: a header of fixed size, a head (small, its meaning depends on the kind) and a body
// (bulk).
//
// Pure functions over bytes; docs/formats/frames.md has the grammar. A header carries a checksum of itself, so that
// garbage is detected before any of its sizes is used; sizes are checked against limits before memory is allocated. The
// body has no checksum of its own: TCP has one, and row blocks include theirs.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace monolith::rpc {

inline constexpr uint32_t kFrameMagic = 0x464c4d4d;  // "MMLF"
// Incremented when a reader of the old version would misread a frame; both ends must have the same.
inline constexpr uint16_t kFrameVersion = 3;
inline constexpr size_t kHeaderBytes = 40;

using HeaderBytes = std::array<uint8_t, kHeaderBytes>;

struct FrameHeader {
  uint16_t kind = 0;
  uint64_t call = 0;  // chosen by the client; the answer has the same
  uint32_t head_bytes = 0;
  uint64_t body_bytes = 0;
  bool operator==(const FrameHeader&) const = default;
};

struct FrameLimits {
  uint32_t head_bytes = 1u << 20;
  uint64_t body_bytes = uint64_t{1} << 30;
};

HeaderBytes EncodeHeader(const FrameHeader& header);

// Throws kDataLoss for bytes that are no header, kFailedPrecondition for another version, kResourceExhausted for a
// frame above the limits.
FrameHeader DecodeHeader(std::span<const uint8_t, kHeaderBytes> bytes, const FrameLimits& limits);

}  // namespace monolith::rpc
