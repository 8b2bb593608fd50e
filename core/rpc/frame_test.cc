#include "rpc/frame.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/error.h"
#include "format/crc32c.h"

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

// A header whose checksum is right, so that only the checks behind it can refuse it.
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

TEST(FrameTest, BytesAreThoseOfTheFormat) {
  const HeaderBytes bytes = EncodeHeader({0x0102, 3, 4, 5});
  const uint8_t expected[32] = {'M', 'M', 'L', 'F', 1, 0, 2, 1, 3, 0, 0, 0, 0, 0, 0, 0,
                                5,   0,   0,   0,   0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(std::memcmp(bytes.data(), expected, 32), 0);
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
  bytes[4] = 2;
  try {
    DecodeHeader(Resealed(bytes), {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kFailedPrecondition);
    EXPECT_STREQ(error.what(), "frame: the other side speaks version 2, this one 1; install the same release on both");
  }
}

TEST(FrameTest, SizesAboveTheLimitsAreRefusedAndThoseAtThemTaken) {
  const FrameLimits limits{10, 20};
  EXPECT_EQ(DecodeHeader(EncodeHeader({1, 1, 10, 20}), limits).body_bytes, 20u);
  EXPECT_EQ(CodeOf(EncodeHeader({1, 1, 11, 20}), limits), Code::kResourceExhausted);
  EXPECT_EQ(CodeOf(EncodeHeader({1, 1, 10, 21}), limits), Code::kResourceExhausted);
  EXPECT_EQ(CodeOf(EncodeHeader({1, 1, 10, ~uint64_t{0}}), limits), Code::kResourceExhausted);
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
