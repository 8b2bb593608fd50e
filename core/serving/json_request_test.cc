#include "serving/json_request.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "serving/json_reader.h"

namespace monolith {
namespace {

JsonRequest Parsed(const std::string& body) { return ParseJsonRequest(body, 32, 8); }

std::string Refusal(const std::string& body) {
  try {
    Parsed(body);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(JsonRequest, RowsBecomeColumnsWhateverTheOrderOfTheirKeys) {
  const auto request = Parsed(R"({"instances": [{"a": [1, 2], "b": 0.5}, {"b": 2, "a": []}], "signature_name": "s"})");
  EXPECT_TRUE(request.is_rows && request.is_named);
  EXPECT_EQ(request.signature, "s");
  ASSERT_EQ(request.columns.size(), 2U);
  EXPECT_EQ(request.columns[0].whole, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(request.columns[0].levels[0].splits, (std::vector<int64_t>{0, 2, 2}));
  EXPECT_EQ(request.columns[1].real, (std::vector<double>{0.5, 2.0}));
}

TEST(JsonRequest, ValuesAndListsOfOneColumnAreTold) {
  const auto rows = Parsed(R"({"inputs": {"a": [7, [8, 9], 10]}})").columns[0];
  EXPECT_EQ(rows.kinds, kJsonWhole | kJsonRowMixed);
  EXPECT_EQ(rows.levels[0].splits, (std::vector<int64_t>{0, 1, 3, 4}));
  EXPECT_NE(Parsed(R"({"inputs": {"a": [[1, [2]]]}})").columns[0].kinds & kJsonDeepMixed, 0U);
  const auto nested = Parsed(R"({"inputs": {"a": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]}})").columns[0];
  EXPECT_EQ(nested.kinds, kJsonWhole);
  EXPECT_EQ(nested.levels[0].width, 2);
  EXPECT_FALSE(nested.levels[0].differs || nested.levels[1].differs);
}

TEST(JsonRequest, NumbersKeepTheir64Bits) {
  const auto column =
      Parsed(R"({"inputs": {"a": [9223372036854775807, -9223372036854775808, 18446744073709551615]}})").columns[0];
  EXPECT_EQ(column.kinds, kJsonWhole | kJsonUnsigned);
  EXPECT_EQ(column.whole, (std::vector<int64_t>{INT64_MAX, INT64_MIN, -1}));
  EXPECT_EQ(column.real[2], 18446744073709551615.0);
  EXPECT_EQ(Parsed(R"({"inputs": {"a": 18446744073709551616}})").columns[0].kinds, kJsonReal | kJsonLarge);
  EXPECT_EQ(Parsed(R"({"inputs": {"a": 1e400}})").columns[0].real[0], HUGE_VAL);
}

TEST(JsonRequest, TextsAndBytesLieEndToEnd) {
  const auto column = Parsed(R"({"instances": ["a\u00e9\ud83d\ude00", {"b64": "Zm9v"}, ""]})").columns[0];
  EXPECT_EQ(column.bytes,
            "a\xc3\xa9\xf0\x9f\x98\x80"
            "foo");
  EXPECT_EQ(column.offsets, (std::vector<int64_t>{0, 7, 10, 10}));
  EXPECT_EQ(column.kinds, kJsonText | kJsonBytes);
}

TEST(JsonRequest, LongStringsEndAtTheirQuoteWhereverItIs) {
  for (size_t size = 0; size < 300; ++size) {
    const std::string plain(size, 'a');
    const auto column = Parsed("{\"inputs\": [\"" + plain + "\", \"b\"]}").columns[0];
    ASSERT_EQ(column.bytes, plain + "b");
    const std::string b64(size / 4 * 4, 'A');
    const std::string object = "{\"b64\": \"" + b64 + "\"}";
    ASSERT_EQ(Parsed("{\"instances\": [" + object + "," + object + "]}").columns[0].offsets,
              (std::vector<int64_t>{0, static_cast<int64_t>(size / 4 * 3), static_cast<int64_t>(size / 4 * 6)}));
    ASSERT_EQ(Parsed("{\"inputs\": [\"" + plain + "\\\"" + plain + "\"]}").columns[0].bytes, plain + "\"" + plain);
    ASSERT_EQ(Parsed("{\"inputs\": [{\"b64\": \"" + b64 + "\\u0041AAA\"}]}").columns[0].offsets[1],
              static_cast<int64_t>(size / 4 * 3 + 3));
    for (const char* wrong : {"\n", "\x80"}) {
      ASSERT_NE(Refusal("{\"inputs\": [\"" + plain + wrong + plain + "\"]}"), "") << size;
    }
    ASSERT_NE(Refusal("{\"inputs\": [\"" + plain), "");
  }
}

TEST(JsonRequest, IntegersOfEveryLengthAreExact) {
  std::string digits;
  for (int i = 1; i <= 18; ++i) {
    digits += static_cast<char>('0' + i % 10);
    for (const std::string sign : {"", "-"}) {
      const auto column = Parsed("{\"inputs\": [" + sign + digits + "]}").columns[0];
      ASSERT_EQ(column.whole[0], std::stoll(sign + digits));
      ASSERT_EQ(column.kinds, kJsonWhole);
    }
  }
  EXPECT_EQ(Parsed(R"({"inputs": [-0, 0.5]})").columns[0].real, (std::vector<double>{0.0, 0.5}));
}

TEST(JsonRequest, WhatIsNoRequestIsRefusedWithASentence) {
  for (const char* body : {"",
                           "{",
                           "{}",
                           "[]",
                           "nul",
                           "{\"a\": 1}",
                           R"({"inputs": 1, "instances": [1]})",
                           R"({"inputs": {"a": 01}})",
                           R"({"inputs": {"a": 1.}})",
                           R"({"inputs": {"a": +1}})",
                           R"({"inputs": {"a": .5}})",
                           R"({"inputs": {"a": 1e}})",
                           R"({"inputs": {"a": tru}})",
                           R"({"inputs": {"a": 1,}})",
                           R"({"inputs": {"a": [1,]}})",
                           R"({"inputs": {"a" 1}})",
                           R"({"inputs": {"a": "\x"}})",
                           R"({"inputs": {"a": "\u12g4"}})",
                           "{\"inputs\": {\"a\": \"\n\"}}",
                           R"({"inputs": {"a": "\ude00"}})",
                           R"({"inputs": {"a": "\ud83dx"}})",
                           R"({"inputs": 1} 2)"}) {
    EXPECT_NE(Refusal(body), "") << body;
  }
  std::string many = "{\"inputs\": {\"a\": 1";
  for (int i = 0; i < 8; ++i) many += ", \"" + std::to_string(i) + "\": 1";
  EXPECT_EQ(Refusal(many + "}}"), "a request may have 8 inputs, got more");
  EXPECT_EQ(Refusal("{\"inputs\": " + std::string(100, '[')), "the body is JSON nested deeper than 32");
}

TEST(JsonRequest, Utf8IsWhatUnicodeSays) {
  for (const char* good :
       {"", "a", "\xc2\x80", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsUtf8(good)) << good;
  }
  for (const char* bad : {"\x80", "\xc0\x80", "\xc2", "\xe0\x9f\x80", "\xed\xa0\x80", "\xf0\x8f\x80\x80",
                          "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\xc2\x41"}) {
    EXPECT_FALSE(IsUtf8(bad)) << bad;
  }
}

}  // namespace
}  // namespace monolith
