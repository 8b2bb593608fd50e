#include "data/text_ids.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/city_hash.h"
#include "base/error.h"

namespace monolith {
namespace {

// Results of the reference implementation of CityHash 1.1: one for each path through the hash.
TEST(CityHash, GivesTheNumbersOfTheReference) {
  const std::string long_text(200, 'x');
  EXPECT_EQ(CityHash64(""), 0x9ae16a3b2f90404full);
  EXPECT_EQ(CityHash64("a"), 0xb3454265b6df75e3ull);
  EXPECT_EQ(CityHash64("ann"), 0xef65df2655554f74ull);
  EXPECT_EQ(CityHash64("hello"), 0xb48be5a931380ce8ull);
  EXPECT_EQ(CityHash64("hello world"), 0x588fb7478bd6b01bull);
  EXPECT_EQ(CityHash64("a text of twenty-five byt"), 0xe7dec5600e1591f0ull);
  EXPECT_EQ(CityHash64("a text of fifty bytes is longer than thirty-two by"), 0xd185542acdb49960ull);
  EXPECT_EQ(CityHash64(long_text), 0x96689325e6b2d000ull);
  EXPECT_EQ(CityHash64("hello", 7), 0xa39f2770a56ef342ull);
}

TEST(TextIds, AreThoseOfEachTextWhateverTheWidthOfOffsetsAndTheNumberOfTasks) {
  std::string bytes;
  std::vector<int32_t> narrow = {0};
  std::vector<int64_t> wide = {0}, expected;
  for (int text = 0; text < 50'000; ++text) {
    const std::string value = std::string(static_cast<size_t>(text % 7), 'v') + std::to_string(text);
    bytes += value;
    narrow.push_back(static_cast<int32_t>(bytes.size()));
    wide.push_back(static_cast<int64_t>(bytes.size()));
    expected.push_back(TextId("user", value));
  }
  EXPECT_EQ(TextIds("user", bytes, std::span<const int32_t>(narrow)), expected);
  EXPECT_EQ(TextIds("user", bytes, std::span<const int64_t>(wide)), expected);
  EXPECT_NE(TextIds("item", bytes, std::span<const int32_t>(narrow)), expected);
}

TEST(TextIds, RefuseOffsetsThatLeaveTheBytes) {
  for (const std::vector<int32_t>& offsets : {std::vector<int32_t>{}, {0, 6}, {3, 2}, {-1, 2}}) {
    EXPECT_THROW(TextIds("user", "12345", std::span<const int32_t>(offsets)), Error);
  }
  const std::vector<int32_t> fitting = {1, 5, 5};
  EXPECT_EQ(TextIds("user", "12345", std::span<const int32_t>(fitting)),
            (std::vector<int64_t>{TextId("user", "2345"), TextId("user", "")}));
}

}  // namespace
}  // namespace monolith
