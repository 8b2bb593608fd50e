#include "format/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace monolith {
namespace {

std::string RandomBytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// The definition, one bit at a time.
uint32_t Bitwise(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82f63b78u : 0);
  }
  return ~crc;
}

TEST(Crc32c, KnownVectorsOfRfc3720) {
  std::string ascending;
  for (int byte = 0; byte < 32; ++byte) ascending.push_back(static_cast<char>(byte));
  const std::string descending(ascending.rbegin(), ascending.rend());
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(ascending), 0x46dd794eu);
  EXPECT_EQ(Crc32c(descending), 0x113fdb5cu);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(""), 0u);
}

TEST(Crc32c, BothTwinsEqualTheDefinitionAtEveryLengthAndAlignment) {
  const std::string bytes = RandomBytes(13000, 301);
  std::vector<size_t> sizes;
  for (size_t size = 0; size < 300; ++size) sizes.push_back(size);
  for (size_t size = 300; size < 12300; size += 61) sizes.push_back(size);
  for (const size_t size : {767, 768, 769, 775, 1536, 4095, 4096, 12287, 12288, 12289, 12990}) sizes.push_back(size);
  for (size_t start = 0; start < 9; ++start) {
    for (const size_t size : sizes) {
      const std::string_view part(bytes.data() + start, size);
      const uint32_t expected = Bitwise(part);
      ASSERT_EQ(Crc32c(part), expected) << start << " " << size;
      ASSERT_EQ(Crc32cExtendPortable(0, part.data(), part.size()), expected) << start << " " << size;
    }
  }
}

TEST(Crc32c, ExtendOverAnySplitEqualsTheWhole) {
  const std::string bytes = RandomBytes(30000, 302);
  const uint32_t whole = Crc32c(bytes);
  std::mt19937 random(303);
  for (int trial = 0; trial < 200; ++trial) {
    uint32_t crc = 0;
    uint32_t portable = 0;
    for (size_t at = 0; at < bytes.size();) {
      const size_t size = std::min<size_t>(bytes.size() - at, random() % 14000);
      crc = Crc32cExtend(crc, bytes.data() + at, size);
      portable = Crc32cExtendPortable(portable, bytes.data() + at, size);
      at += size;
    }
    ASSERT_EQ(crc, whole);
    ASSERT_EQ(portable, whole);
  }
}

TEST(Crc32c, MaskRoundTripsAndMatchesTheRecordFormat) {
  EXPECT_EQ(MaskCrc(0), 0xa282ead8u);
  for (const uint32_t crc : {0u, 1u, 0xffffffffu, 0x8a9136aau, 0x80000000u}) {
    EXPECT_EQ(UnmaskCrc(MaskCrc(crc)), crc);
    EXPECT_NE(MaskCrc(crc), crc);
  }
}

}  // namespace
}  // namespace monolith
