#include "rpc/frame.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <span>
#include <string>

#include "base/error.h"
#include "format/crc32c.h"
#include "rpc/protocol.h"

namespace monolith::rpc {
namespace {

Code CodeOf(const HeaderBytes& bytes, const FrameLimits& limits = {}) {
  try {
    DecodeHeader(bytes, limits);
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "accepted";
  return Code::kNotFound;
}

// A header with a valid checksum, so that only the checks after it can reject it.
HeaderBytes Resealed(HeaderBytes bytes) {
  const uint32_t crc = Crc32c(bytes.data(), 32);
  std::memcpy(bytes.data() + 32, &crc, sizeof(crc));
  return bytes;
}

TEST(FrameTest, AHeaderComesBack) {
  const FrameHeader header{7, ~uint64_t{0}, 1u << 20, uint64_t{1} << 30};
  EXPECT_EQ(DecodeHeader(EncodeHeader(header), {}), header);
  EXPECT_EQ(DecodeHeader(EncodeHeader({}), {}), FrameHeader{});
}

std::string Hex(std::span<const uint8_t> bytes) {
  std::string hex;
  for (const uint8_t byte : bytes) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

std::string FrameHex(uint16_t kind, const std::string& head) {
  const HeaderBytes header = EncodeHeader({kind, 0, static_cast<uint32_t>(head.size()), 0});
  return Hex(header) + Hex({reinterpret_cast<const uint8_t*>(head.data()), head.size()});
}

// docs/formats/frames.md has the same; tests/format/test_frames_page.py compares.
TEST(FrameTest, BytesAreThoseOfTheFormat) {
  EXPECT_EQ(Hex(EncodeHeader({0x0102, 3, 4, 5})),
            "4d4d4c46030002010300000000000000050000000000000004000000000000006bba453a00000000");
  EXPECT_EQ(FrameHex(kGreeting, EncodeGreeting({"secret", "hello"})),
            "4d4d4c46030001000000000000000000000000000000000013000000000000"
            "00216199e300000000060000007365637265740500000068656c6c6f");
  EXPECT_EQ(FrameHex(kGreeting, ""),
            "4d4d4c4603000100000000000000000000000000000000000000000000000000fcefabbc00000000");
  EXPECT_EQ(FrameHex(kError, EncodeError(Code::kPermissionDenied, "no")),
            "4d4d4c4603000000000000000000000000000000000000000a00000000000000679546410000000008000000020000006e6f");
}

TEST(FrameTest, EveryFlippedBitIsRefused) {
  const HeaderBytes good = EncodeHeader({3, 9, 100, 1000});
  for (size_t bit = 0; bit < 8 * kHeaderBytes; ++bit) {
    HeaderBytes bad = good;
    bad[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    EXPECT_EQ(CodeOf(bad), Code::kDataLoss) << bit;
  }
}

TEST(FrameTest, AnotherVersionIsNamed) {
  HeaderBytes bytes = EncodeHeader({});
  bytes[4] = kFrameVersion + 1;
  try {
    DecodeHeader(Resealed(bytes), {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kFailedPrecondition);
    EXPECT_STREQ(error.what(), "frame: the other side speaks version 4, this one 3; install the same release on both");
  }
}

TEST(FrameTest, SizesAboveTheLimitsAreRefusedAndThoseAtThemTaken) {
  const FrameLimits limits{10, 20};
  EXPECT_EQ(DecodeHeader(EncodeHeader({1, 1, 10, 20}), limits).body_bytes, 20u);
  EXPECT_EQ(CodeOf(EncodeHeader({1, 1, 11, 20}), limits), Code::kResourceExhausted);
  EXPECT_EQ(CodeOf(EncodeHeader({1, 1, 10, 21}), limits), Code::kResourceExhausted);
  EXPECT_EQ(CodeOf(EncodeHeader({1, 1, 10, ~uint64_t{0}}), limits), Code::kResourceExhausted);
}

TEST(ProtocolTest, GreetingsAndErrorsComeBackAndAnyOtherSizeIsRefused) {
  const std::string greeting = EncodeGreeting({"secret", std::string("\0\xff words", 8)});
  EXPECT_EQ(DecodeGreeting(greeting).token, "secret");
  EXPECT_EQ(DecodeGreeting(greeting).words, std::string("\0\xff words", 8));
  const std::string error = EncodeError(Code::kDataLoss, "lost");
  EXPECT_EQ(DecodeError(error).code(), Code::kDataLoss);
  EXPECT_STREQ(DecodeError(error).what(), "lost");
  const auto is_refused = [](const auto& decode) {
    try {
      decode();
    } catch (const Error& refusal) {
      return refusal.code() == Code::kDataLoss;
    }
    return false;
  };
  for (size_t size = 0; size < greeting.size(); ++size) {
    EXPECT_TRUE(is_refused([&] { DecodeGreeting(greeting.substr(0, size)); })) << size;
  }
  for (size_t size = 0; size < error.size(); ++size) {
    EXPECT_TRUE(is_refused([&] { DecodeError(error.substr(0, size)); })) << size;
  }
  EXPECT_TRUE(is_refused([&] { DecodeGreeting(greeting + "x"); }));
  EXPECT_TRUE(is_refused([&] { DecodeError(error + "x"); }));
  EXPECT_TRUE(is_refused([&] { DecodeError(EncodeError(static_cast<Code>(200), "unknown")); }));
}

TEST(FrameTest, RandomBytesAreNeverAFrame) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 20000; ++i) {
    HeaderBytes bytes;
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    if (i % 2 == 0) std::memcpy(bytes.data(), EncodeHeader({}).data(), 6);  // the right beginning
    EXPECT_EQ(CodeOf(bytes), Code::kDataLoss);
  }
}

}  // namespace
}  // namespace monolith::rpc
