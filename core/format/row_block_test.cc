#include "format/row_block.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "format/crc32c.h"

namespace monolith {
namespace {

RowBlockHeader Header(BlockKind kind, uint32_t bytes_per_row) {
  RowBlockHeader header;
  header.kind = kind;
  header.digest = 0x1122334455667788ull;
  header.table = 3;
  header.bucket = 1023;
  header.payload_bytes_per_row = bytes_per_row;
  header.epoch = 42;
  return header;
}

int64_t KeyOf(uint32_t row) { return row == 0 ? std::numeric_limits<int64_t>::min() : int64_t{row} * -7919; }

std::string Build(const RowBlockHeader& header, uint32_t rows, uint32_t max_rows, std::string memory = {}) {
  RowBlockBuilder builder(header, max_rows, std::move(memory));
  for (uint32_t row = 0; row < rows; ++row) {
    std::byte* payload = builder.Add(KeyOf(row), 1000 + row);
    for (uint32_t at = 0; at < header.payload_bytes_per_row; ++at) payload[at] = static_cast<std::byte>(row * 31 + at);
  }
  return builder.Finish();
}

void ExpectRows(const std::string& block, uint32_t rows, uint32_t bytes_per_row) {
  const RowBlockView view(block);
  ASSERT_EQ(view.count(), rows);
  for (uint32_t row = 0; row < rows; ++row) {
    ASSERT_EQ(view.key(row), KeyOf(row));
    ASSERT_EQ(view.time(row), 1000 + row);
    for (uint32_t at = 0; at < bytes_per_row; ++at) {
      ASSERT_EQ(view.payload(row)[at], static_cast<std::byte>(row * 31 + at));
    }
  }
}

std::string ReasonFor(const std::string& block) {
  try {
    RowBlockView view(block, "file 'x'", 100);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kDataLoss);
    return error.what();
  }
  return "accepted";
}

// Fixes the checksum, to reach the checks before it.
std::string Resealed(std::string block) {
  const uint32_t crc = Crc32c(block.data(), block.size() - 8);
  std::memcpy(block.data() + block.size() - 8, &crc, 4);
  return block;
}

TEST(RowBlock, RoundTripsEveryRowCountAndRowSize) {
  for (const uint32_t bytes_per_row : {0u, 1u, 3u, 4u, 8u, 12u, 128u}) {
    for (uint32_t rows = 0; rows < 12; ++rows) {
      const BlockKind kind = bytes_per_row == 0 ? BlockKind::kTombstone : BlockKind::kServing;
      const std::string block = Build(Header(kind, bytes_per_row), rows, rows);
      ASSERT_EQ(block.size() % 8, 0u);
      ExpectRows(block, rows, bytes_per_row);
    }
  }
}

TEST(RowBlock, FewerRowsThanReservedGiveTheSameBytesAsAnExactReservation) {
  for (const uint32_t bytes_per_row : {1u, 12u, 128u}) {
    for (uint32_t rows = 0; rows < 9; ++rows) {
      const RowBlockHeader header = Header(BlockKind::kFull, bytes_per_row);
      EXPECT_EQ(Build(header, rows, rows + 17), Build(header, rows, rows));
    }
  }
}

TEST(RowBlock, ReusedMemoryLeavesNoTraceInTheBytes) {
  const RowBlockHeader header = Header(BlockKind::kFull, 13);
  const std::string fresh = Build(header, 5, 7);
  EXPECT_EQ(Build(header, 5, 7, std::string(100000, '\x5a')), fresh);
  EXPECT_EQ(Build(header, 5, 7, std::string(3, '\x5a')), fresh);
  EXPECT_EQ(BuildFilterBlock(1, 2, "abc", std::string(5000, '\x5a')), BuildFilterBlock(1, 2, "abc"));
}

TEST(RowBlock, HeaderBytesAreTheDocumentedOnes) {
  const std::string block = Build(Header(BlockKind::kFull, 4), 1, 1);
  const unsigned char expected[48] = {
      0x4d, 0x52, 0x4c, 0x42, 1, 0, 1, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 3,  0, 0, 0, 0xff, 3, 0, 0,
      1,    0,    0,    0,    4, 0, 0, 0, 4,    0,    0,    0,    0,    0,    0,    0,    42, 0, 0, 0, 0,    0, 0, 0};
  EXPECT_EQ(std::memcmp(block.data(), expected, 48), 0);
  EXPECT_EQ(block.size(), 48u + 8 + 8 + 8 + 8);
}

TEST(RowBlock, FilterBlocksCarryTheirBytes) {
  for (const size_t size : {0, 1, 7, 8, 1000}) {
    const std::string filter(size, '\x7e');
    const std::string block = BuildFilterBlock(7, 9, filter);
    const RowBlockView view(block);
    EXPECT_EQ(view.header().kind, BlockKind::kFilter);
    EXPECT_EQ(view.header().bucket, 7u);
    EXPECT_EQ(view.header().epoch, 9u);
    EXPECT_EQ(view.payload_bytes(), filter);
  }
}

TEST(RowBlock, EverySingleBitFlipIsRefused) {
  for (std::string block : {Build(Header(BlockKind::kFull, 12), 3, 3), BuildFilterBlock(3, 1, "filter"),
                            Build(Header(BlockKind::kTombstone, 0), 3, 3)}) {
    for (size_t bit = 0; bit < 8 * block.size(); ++bit) {
      block[bit / 8] = static_cast<char>(block[bit / 8] ^ (1 << (bit % 8)));
      ASSERT_NE(ReasonFor(block), "accepted") << "bit " << bit;
      block[bit / 8] = static_cast<char>(block[bit / 8] ^ (1 << (bit % 8)));
    }
  }
}

TEST(RowBlock, EveryTruncationAndEveryTailIsRefused) {
  const std::string block = Build(Header(BlockKind::kFull, 12), 3, 3);
  for (size_t size = 0; size < block.size(); ++size) ASSERT_NE(ReasonFor(block.substr(0, size)), "accepted") << size;
  EXPECT_NE(ReasonFor(block + std::string(8, '\0')), "accepted");
  EXPECT_EQ(RowBlockBytes(RowBlockView::HeaderAt(block + block)), block.size());
}

TEST(RowBlock, RandomHeadersUnderARightChecksumNeverReadOutside) {
  std::mt19937_64 random(304);
  const std::string block = Build(Header(BlockKind::kFull, 12), 3, 3);
  for (int trial = 0; trial < 20000; ++trial) {
    std::string bad = block;
    const size_t at = 4 * (random() % 12);
    const uint32_t word =
        (trial % 3 == 0) ? ~0u >> (random() % 32) : static_cast<uint32_t>(random() >> (random() % 64));
    std::memcpy(bad.data() + at, &word, 4);
    bad = Resealed(bad);
    try {
      const RowBlockView view(bad);
      uint64_t sum = 0;
      for (uint32_t row = 0; row < view.count(); ++row) sum += static_cast<uint64_t>(view.key(row)) + view.time(row);
      for (const char byte : view.payload_bytes()) sum += static_cast<unsigned char>(byte);
      ASSERT_NE(sum, 1u);
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), Code::kDataLoss);
    }
  }
}

TEST(RowBlock, ComplaintsNameOriginOffsetAndReason) {
  std::string block = Build(Header(BlockKind::kFull, 12), 3, 3);
  EXPECT_NE(ReasonFor("short").find("file 'x': offset 100: a row block takes at least 56 bytes"), std::string::npos);
  std::string bad = block;
  bad[0] = 'X';
  EXPECT_NE(ReasonFor(bad).find("file 'x': offset 100: not a row block: magic is 0x424c5258"), std::string::npos);
  bad = block;
  bad[4] = 2;
  EXPECT_NE(ReasonFor(bad).find("offset 104: row block version 2, this build reads version 1"), std::string::npos);
  bad = block;
  bad[60] ^= 1;
  EXPECT_NE(ReasonFor(bad).find("checksum of the row block"), std::string::npos);
  bad = block;
  bad[22] = 1;
  EXPECT_NE(ReasonFor(Resealed(bad)).find("offset 120: bucket 66559 is not below 1024"), std::string::npos);
  bad = block;
  bad[32] = 0;
  EXPECT_NE(ReasonFor(Resealed(bad)).find("offset 132: payload is 0 bytes, expected 36 for 3 rows"), std::string::npos);
}

TEST(RowBlock, HugeFilterSizesDoNotWrapAround) {
  std::string block = BuildFilterBlock(0, 0, "x");
  for (const uint64_t size : {~0ull, ~0ull - 7, ~0ull - 55, 1ull << 63, 1ull << 32}) {
    std::memcpy(block.data() + 32, &size, 8);
    EXPECT_NE(ReasonFor(Resealed(block)).find("does not fit"), std::string::npos);
  }
}

std::string Packed() {
  std::string packed = Build(Header(BlockKind::kServing, 12), 5, 5);
  packed += Build(Header(BlockKind::kTombstone, 0), 3, 3);
  packed += BuildFilterBlock(7, 1, "counts");
  return packed + Build(Header(BlockKind::kFull, 3), 0, 0);
}

std::string ReasonForPacked(std::string_view packed) {
  const std::vector<char> exact(packed.begin(), packed.end());  // the address sanitizer detects a read one byte too far
  try {
    RowBlockView::AllIn({exact.data(), exact.size()});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kDataLoss);
    return error.what();
  }
  return "accepted";
}

TEST(PackedBlocks, AreTheBlocksThatLieEndToEnd) {
  const std::string packed = Packed();
  const std::vector<RowBlockView> blocks = RowBlockView::AllIn(packed);
  ASSERT_EQ(blocks.size(), 4u);
  EXPECT_EQ(blocks[0].count(), 5u);
  EXPECT_EQ(blocks[0].key(4), KeyOf(4));
  EXPECT_EQ(blocks[1].header().kind, BlockKind::kTombstone);
  EXPECT_EQ(blocks[2].payload_bytes(), "counts");
  EXPECT_EQ(blocks[3].count(), 0u);
  const std::vector<int64_t> offsets = PackedBlockOffsets(packed);
  ASSERT_EQ(offsets.size(), 5u);
  EXPECT_EQ(offsets.back(), static_cast<int64_t>(packed.size()));
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(RowBlockBytes(blocks[i].header()), static_cast<uint64_t>(offsets[i + 1] - offsets[i]));
  }
  EXPECT_TRUE(RowBlockView::AllIn("").empty());
  EXPECT_EQ(PackedBlockOffsets(""), std::vector<int64_t>{0});
}

TEST(PackedBlocks, EveryBitFlipAndEveryTruncationInsideABlockIsRefused) {
  const std::string packed = Packed();
  for (size_t bit = 0; bit < 8 * packed.size(); ++bit) {
    std::string damaged = packed;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    ASSERT_NE(ReasonForPacked(damaged), "accepted") << "bit " << bit;
  }
  const std::vector<int64_t> offsets = PackedBlockOffsets(packed);
  for (size_t size = 0; size < packed.size(); ++size) {
    const bool is_whole = std::find(offsets.begin(), offsets.end(), static_cast<int64_t>(size)) != offsets.end();
    ASSERT_EQ(ReasonForPacked(std::string_view(packed).substr(0, size)) == "accepted", is_whole) << size << " bytes";
  }
}

TEST(PackedBlocks, ComplaintsCountFromTheBeginningOfTheBuffer) {
  std::string packed = Packed();
  const int64_t second = PackedBlockOffsets(packed)[1];
  packed[static_cast<size_t>(second) + 4] = 9;
  EXPECT_EQ(ReasonForPacked(packed), "packed row blocks: offset " + std::to_string(second + 4) +
                                         ": row block version 9, this build reads version 1");
}

TEST(PackedBlocks, HeadersThatClaimMoreThanThereIsAreRefusedWithoutTakingIt) {
  for (const uint64_t payload : {uint64_t{1} << 40, UINT64_MAX, UINT64_MAX - 7, UINT64_MAX - 55}) {
    std::string block = BuildFilterBlock(7, 1, "counts");
    std::memcpy(block.data() + 32, &payload, 8);
    EXPECT_NE(ReasonForPacked(Packed() + Resealed(block)), "accepted") << payload;
  }
}

}  // namespace
}  // namespace monolith
