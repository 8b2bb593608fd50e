#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

#include "base/hash.h"
#include "filter/sliding_hash_filter.h"
#include "format/crc32c.h"

namespace monolith {
namespace {

SlidingHashFilterSlice Filled(int64_t num_ids) {
  SlidingHashFilterSlice slice(300, 5);
  for (int64_t id = 0; id < num_ids; ++id) slice.Add(HashId(id), 1 + static_cast<uint32_t>(id % 3));
  return slice;
}

std::string SavedWith(uint64_t capacity, uint32_t split_num) {
  SlidingHashFilterSlice slice(capacity, split_num);
  slice.Add(HashId(1), 1);
  return slice.Save();
}

// Bytes with a valid checksum, so that only the checks after it can reject them.
std::string Resealed(std::string bytes) {
  const uint32_t crc = Crc32c(std::string_view(bytes).substr(0, bytes.size() - 8));
  std::memcpy(bytes.data() + bytes.size() - 8, &crc, sizeof(crc));
  return bytes;
}

Code CodeOfLoading(const std::string& bytes) {
  SlidingHashFilterSlice slice = Filled(40);
  const std::string before = slice.Save();
  try {
    slice.Load(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(slice.Save(), before);
    return error.code();
  }
  ADD_FAILURE() << "accepted";
  return Code::kUnavailable;
}

TEST(SlidingHashFilterFormatTest, LoadedSliceGoesOnExactlyLikeTheSavedOne) {
  for (const int64_t num_ids : {1, 74, 75, 1000, 12345}) {
    SlidingHashFilterSlice saved = Filled(num_ids);
    SlidingHashFilterSlice loaded = Filled(17);
    loaded.Load(saved.Save());
    EXPECT_EQ(loaded.head(), saved.head());
    EXPECT_EQ(loaded.num_elements(), saved.num_elements());
    for (int64_t id = num_ids - 200; id < num_ids + 200; ++id) {
      ASSERT_EQ(loaded.Add(HashId(id), 2), saved.Add(HashId(id), 2)) << id;
    }
    EXPECT_EQ(loaded.Save(), saved.Save());
  }
}

TEST(SlidingHashFilterFormatTest, NothingCountedIsNoBytesAndNoBytesClear) {
  EXPECT_TRUE(Filled(0).Save().empty());
  SlidingHashFilterSlice slice = Filled(1000);
  slice.Load("");
  EXPECT_EQ(slice.num_elements(), 0u);
  EXPECT_EQ(slice.head_increment(), 0u);
}

TEST(SlidingHashFilterFormatTest, FailuresAreStateToo) {
  SlidingHashFilterSlice slice(300, 5);
  for (uint64_t signature = 0; signature < 33; ++signature) slice.Add(signature << 32, 1);
  SlidingHashFilterSlice loaded(300, 5);
  loaded.Load(slice.Save());
  EXPECT_EQ(loaded.failure_count(), 1u);
}

TEST(SlidingHashFilterFormatTest, OnlySplitsInUseAreStored) {
  SlidingHashFilterSlice slice(1000000, 7);
  slice.Add(HashId(1), 1);
  const size_t cells = FilterSplitRule::NumCells(slice.split_capacity());
  EXPECT_LT(slice.Save().size(), cells / 8 + 100);
}

TEST(SlidingHashFilterFormatTest, OtherParametersAreRefused) {
  EXPECT_EQ(CodeOfLoading(SavedWith(300, 6)), Code::kInvalidArgument);
  EXPECT_EQ(CodeOfLoading(SavedWith(304, 5)), Code::kInvalidArgument);
  EXPECT_EQ(CodeOfLoading(SavedWith(375, 6)), Code::kInvalidArgument) << "one more split of the same capacity";
}

TEST(SlidingHashFilterFormatTest, OtherVersionIsRefusedWithBothNumbers) {
  std::string bytes = Filled(100).Save();
  bytes[4] = 2;
  SlidingHashFilterSlice slice(300, 5);
  try {
    slice.Load(Resealed(bytes));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("version 2"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("version 1"), std::string::npos);
  }
}

TEST(SlidingHashFilterFormatTest, EveryFlippedBitIsRefused) {
  const std::string good = Filled(100).Save();
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    SlidingHashFilterSlice slice = Filled(3);
    const std::string before = slice.Save();
    EXPECT_THROW(slice.Load(bad), Error) << bit;
    EXPECT_EQ(slice.Save(), before);
  }
}

TEST(SlidingHashFilterFormatTest, EveryTruncationAndEveryTailIsRefused) {
  const std::string good = Filled(100).Save();
  for (size_t size = 1; size < good.size(); ++size) {
    EXPECT_EQ(CodeOfLoading(good.substr(0, size)), Code::kDataLoss) << size;
  }
  EXPECT_EQ(CodeOfLoading(good + std::string(8, '\0')), Code::kDataLoss);
  EXPECT_EQ(CodeOfLoading("not a filter, but long enough to be one, if only just"), Code::kDataLoss);
}

// A correct checksum over wrong content: written by a broken program, not by a broken disk.
TEST(SlidingHashFilterFormatTest, SealedNonsenseIsRefusedOrConsistent) {
  const std::string good = Filled(100).Save();
  std::mt19937 random(301);
  for (int trial = 0; trial < 20000; ++trial) {
    std::string bad = good;
    const size_t changes = 1 + random() % 3;
    for (size_t change = 0; change < changes; ++change) bad[random() % (bad.size() - 8)] = static_cast<char>(random());
    SlidingHashFilterSlice slice(300, 5);
    try {
      slice.Load(Resealed(bad));
    } catch (const Error&) {
      EXPECT_TRUE(slice.Save().empty());
      continue;
    }
    SlidingHashFilterSlice again(300, 5);
    again.Load(slice.Save());
    EXPECT_EQ(again.Save(), slice.Save());
    for (int64_t id = 0; id < 50; ++id) EXPECT_EQ(again.Add(HashId(id), 1), slice.Add(HashId(id), 1));
  }
}

TEST(SlidingHashFilterFormatTest, BytesOfVersionOneStayReadable) {
  // One id of hash 0x00000abc80000000 counted 3 times by a slice of capacity 300 in 5 splits: docs/formats/filter.md.
  SlidingHashFilterSlice slice(300, 5);
  slice.Add(0x00000abc80000000ull, 3);
  const unsigned char golden[] = {
      0x4d, 0x53, 0x46, 0x4c, 0x01, 0x00, 0x05, 0x00,
      0x4b, 0x00, 0x00, 0x00, 0x6a, 0x00, 0x00, 0x00,  // magic .. cells
      0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00,  // head, splits
      0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
      0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,  // moves, failures
      0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00,  // split 0, 1 cell
      0x00, 0x00, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00,
      0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,  // bitmap: cell 45
      0xc3, 0xab, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,  // 0xabc, count 3
  };
  const std::string saved = slice.Save();
  ASSERT_EQ(saved.size(), sizeof(golden) + 8);
  EXPECT_EQ(std::memcmp(saved.data(), golden, sizeof(golden)), 0);
  SlidingHashFilterSlice loaded(300, 5);
  loaded.Load(Resealed(std::string(reinterpret_cast<const char*>(golden), sizeof(golden)) + std::string(8, '\0')));
  EXPECT_EQ(loaded.Count(0x00000abc80000000ull), 3u);
}

}  // namespace
}  // namespace monolith
