#include "serving/request_text.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace monolith {
namespace {

std::optional<std::string> Decoded(std::string_view text) {
  const auto size = DecodedSize(text);
  if (!size) return std::nullopt;
  std::string bytes(*size, '\0');
  if (!DecodeBase64(text, bytes.data())) return std::nullopt;
  return bytes;
}

TEST(RequestText, Base64OfEveryLengthIsDecoded) {
  EXPECT_EQ(Decoded(""), "");
  EXPECT_EQ(Decoded("Zg=="), "f");
  EXPECT_EQ(Decoded("Zm8="), "fo");
  EXPECT_EQ(Decoded("Zm9v"), "foo");
  EXPECT_EQ(Decoded("Zm9vYg=="), "foob");
  EXPECT_EQ(Decoded("+/+/"), "\xfb\xff\xbf");
}

TEST(RequestText, WhatIsNoPlainBase64IsLeftToOthers) {
  for (const char* text : {"Z", "Zg=", "Zg", "====", "Z===", "=g==", "Zm9v\n", "Zm-v", "Zm_v", "Zg==Zg==", "Zm9\xc3"}) {
    EXPECT_EQ(Decoded(text), std::nullopt) << text;
  }
}

TEST(RequestText, LongBase64IsDecodedLikeShortOne) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text, expected;
  for (uint32_t i = 0; text.size() < 1024; i += 0x010843) {
    std::string four;
    for (int shift = 18; shift >= 0; shift -= 6) four.push_back(kAlphabet[(i >> shift) & 63]);
    text += four;
    expected += *Decoded(four);
    ASSERT_EQ(Decoded(text), expected);
    ASSERT_EQ(Decoded(text + "Zg=="), expected + "f");
  }
  for (size_t at = 0; at < text.size(); ++at) {
    for (const char foreign : {'=', '-', '_', '@', '[', '`', '{', ':', '.', '\0', '\xc3'}) {
      if (foreign == '=' && at + 1 == text.size()) continue;  // padding
      std::string damaged = text;
      damaged[at] = foreign;
      ASSERT_EQ(Decoded(damaged), std::nullopt) << at << foreign;
    }
  }
}

TEST(RequestText, TheSizeOfABatchIsFoundBehindItsColumns) {
  EXPECT_EQ(ExampleBatchSize(std::string_view("\x0a\x03xyz\x18\x64", 7)), 100U);
  EXPECT_EQ(ExampleBatchSize(""), 0U);
  EXPECT_EQ(ExampleBatchSize(std::string_view("\x0a\x09xyz", 5)), std::nullopt);
  EXPECT_EQ(ExampleBatchSize("\x18"), std::nullopt);
  EXPECT_EQ(ExampleBatchSize("\x1b"), std::nullopt);
  EXPECT_EQ(ExampleBatchSize("\x21wxyz"), std::nullopt);
}

TEST(RequestText, NumbersHaveFewDigitsAndAPoint) {
  const std::vector<float> values = {0.1F, -1.0F, 1e20F, 1e-5F, 0.0F, 16777216.0F};
  EXPECT_EQ(JsonOfFloats(values, 0), "[0.1,-1.0,1e+20,1e-05,0.0,16777216.0]");
  EXPECT_EQ(JsonOfFloats(values, 3), "[[0.1,-1.0,1e+20],[1e-05,0.0,16777216.0]]");
  EXPECT_EQ(JsonOfFloats({}, 0), "[]");
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_EQ(JsonOfFloats(std::vector<float>{1.0F, bad}, 0), std::nullopt);
  }
}

}  // namespace
}  // namespace monolith
