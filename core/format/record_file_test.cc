#include "format/record_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "format/snappy.h"

namespace monolith {
namespace {

namespace fs = std::filesystem;

std::string Mixed(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::string bytes;
  while (bytes.size() < size) {
    if (random() % 3 == 0) {
      bytes.append(random() % 300, static_cast<char>(random()));
    } else if (random() % 2 == 0 && bytes.size() > 100) {
      bytes.append(bytes.substr(random() % (bytes.size() - 100), random() % 100));
    } else {
      for (uint32_t i = random() % 200; i > 0; --i) bytes.push_back(static_cast<char>(random()));
    }
  }
  bytes.resize(size);
  return bytes;
}

TEST(Snappy, RoundTripsEverySizeAndTexture) {
  for (const size_t size :
       {0u, 1u, 2u, 7u, 8u, 9u, 59u, 60u, 61u, 255u, 256u, 257u, 5000u, 65535u, 65536u, 65537u, 300000u}) {
    for (const std::string& bytes : {Mixed(size, 401), std::string(size, 'a'), Mixed(size, 402)}) {
      std::string block;
      SnappyCompress(bytes, &block);
      ASSERT_LE(block.size(), SnappyLargest(size));
      std::string back = "before";
      ASSERT_TRUE(SnappyUncompress(block, &back));
      ASSERT_EQ(back, "before" + bytes);
    }
  }
}

TEST(Snappy, CompressesRepetition) {
  std::string block;
  SnappyCompress(std::string(100000, 'x'), &block);
  EXPECT_LT(block.size(), 6000u);
}

TEST(Snappy, ReadsEveryElementOfTheFormat) {
  // "abcd" literal, copy with a 1-byte offset, with a 2-byte offset, with a 4-byte offset, and a literal of extended
  // length.
  std::string block(
      "\x15\x0c"
      "abcd"
      "\x01\x04"
      "\x0e\x08\x00"
      "\x0f\x04\x00\x00\x00"
      "\xf0\x04"
      "12345",
      23);
  std::string bytes;
  ASSERT_TRUE(SnappyUncompress(block, &bytes));
  EXPECT_EQ(bytes, "abcdabcdabcdabcd12345");
}

TEST(Snappy, DamagedBlocksAreRefusedOrHarmlessAndNeverReadOutside) {
  std::string good;
  SnappyCompress(Mixed(2000, 403), &good);
  std::mt19937 random(404);
  for (int trial = 0; trial < 20000; ++trial) {
    std::string bad = good;
    bad[random() % bad.size()] = static_cast<char>(random());
    if (trial % 2 == 0) bad.resize(random() % bad.size());
    std::string bytes = "kept";
    if (!SnappyUncompress(bad, &bytes)) {
      ASSERT_EQ(bytes, "kept");
    }
  }
  std::string bytes;
  EXPECT_FALSE(SnappyUncompress("", &bytes));
  EXPECT_FALSE(SnappyUncompress(std::string("\xff\xff\xff\xff\x0f\x00x", 7), &bytes)) << "claims 4 GiB";
  EXPECT_FALSE(SnappyUncompress(std::string("\x01\x00", 2), &bytes)) << "literal without its byte";
  EXPECT_FALSE(SnappyUncompress(std::string("\x01\x00"
                                            "a"
                                            "\x00",
                                            4),
                                &bytes))
      << "a tag behind the last byte";
  EXPECT_FALSE(SnappyUncompress(std::string("\x04\x01\x00", 3), &bytes)) << "copy from before the start";
}

class RecordFile : public ::testing::TestWithParam<RecordCompression> {
 protected:
  void SetUp() override {
    std::string name = fs::temp_directory_path() / "monolith-record-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = (folder_ / "records").string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  void Write(const std::vector<std::string>& records) {
    OutputFile file(path_);
    RecordWriter writer(&file, GetParam());
    for (const std::string& record : records) writer.Append(record);
    writer.Flush();
    file.Commit();
  }
  std::vector<std::string> Read() {
    RecordReader reader(path_, GetParam());
    std::vector<std::string> records;
    for (std::string_view record; reader.Next(&record);) records.emplace_back(record);
    return records;
  }
  std::string Slurp() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void Spill(const std::string& bytes) const {
    fs::remove(path_);  // rewriting a truncated file makes some file systems flush at close
    std::ofstream(path_, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

  fs::path folder_;
  std::string path_;
};

TEST_P(RecordFile, RoundTripsRecordsOfAllSizes) {
  std::vector<std::string> records;
  for (const size_t size : {0u, 1u, 100u, 0u, 70000u, 5000000u, 3u}) records.push_back(Mixed(size, 405));
  for (int i = 0; i < 30000; ++i) records.push_back("record " + std::to_string(i));
  Write(records);
  EXPECT_EQ(Read(), records);
  Write({});
  EXPECT_TRUE(Read().empty());
}

TEST_P(RecordFile, NoDamagedFileGivesOtherRecordsThanItsOwnFirstOnes) {
  const std::vector<std::string> records = {"first", "", "third record", Mixed(200, 406)};
  Write(records);
  const std::string good = Slurp();
  std::mt19937 random(407);
  for (int trial = 0; trial < 2000; ++trial) {
    std::string bad = good;
    if (trial < static_cast<int>(good.size())) {
      bad.resize(static_cast<size_t>(trial));
    } else {
      bad[random() % bad.size()] ^= static_cast<char>(1 << (random() % 8));
    }
    Spill(bad);
    std::vector<std::string> seen;
    try {
      RecordReader reader(path_, GetParam());
      for (std::string_view record; reader.Next(&record);) seen.emplace_back(record);
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), Code::kDataLoss);
      ASSERT_NE(std::string(error.what()).find(path_ + "': offset "), std::string::npos);
    }
    ASSERT_LE(seen.size(), records.size());
    for (size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], records[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Compression, RecordFile,
                         ::testing::Values(RecordCompression::kNone, RecordCompression::kSnappy),
                         [](const auto& instance) {
                           return instance.param == RecordCompression::kNone ? "None" : "Snappy";
                         });

TEST(RecordFraming, BytesAreTheDocumentedOnes) {
  const std::string path = fs::temp_directory_path() / ("monolith-framing-" + std::to_string(::getpid()));
  {
    OutputFile file(path);
    RecordWriter writer(&file, RecordCompression::kNone);
    writer.Append("abc");
    writer.Flush();
    file.Commit();
  }
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  fs::remove(path);
  EXPECT_EQ(bytes, std::string("\x03\0\0\0\0\0\0\0"
                               "\xb0\x99\x49\x0e"
                               "abc"
                               "\x6e\x57\xf1\x21",
                               19));
}

}  // namespace
}  // namespace monolith
