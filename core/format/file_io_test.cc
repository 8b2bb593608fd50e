#include "format/file_io.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "format/crc32c.h"
#include "format/summed_read.h"

namespace monolith {
namespace {

namespace fs = std::filesystem;

std::string RandomBytes(size_t size) {
  std::mt19937_64 random(size + 1);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class FileIoTest : public ::testing::Test {
 protected:
  // In the working folder, which is on a disk more often than the one for temporary files.
  FileIoTest() : folder_("file_io_test." + std::to_string(::getpid())) { fs::create_directories(folder_); }
  ~FileIoTest() override { fs::remove_all(folder_); }
  std::string Path() const { return folder_ + "/file"; }
  void Write(const std::string& bytes) const { std::ofstream(Path(), std::ios::binary) << bytes; }
  // So that a read past the cache does bypass it.
  void ForgetPages() const {
#if defined(__linux__)
    const int descriptor = ::open(Path().c_str(), O_RDONLY | O_CLOEXEC);
    ::fsync(descriptor);
    ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    ::close(descriptor);
#endif
  }

  std::string folder_;
};

TEST_F(FileIoTest, EverySizeIsWrittenPastTheCache) {
  for (const size_t size :
       {0u, 1u, 4095u, 4096u, 4097u, (1u << 20) - 1, 1u << 20, (1u << 20) + 1, (3u << 20) + 12345}) {
    for (const size_t piece : {size_t{1000}, size_t{4096}, size_t{700000}, size_t{5} << 20}) {
      const std::string bytes = RandomBytes(size);
      OutputFile file(Path(), {}, Caching::kPastCache);
      for (size_t at = 0; at < size; at += piece) file.Append(std::string_view(bytes).substr(at, piece));
      EXPECT_EQ(file.size(), size);
      file.Commit();
      EXPECT_EQ(Content(Path()), bytes) << size << " in pieces of " << piece;
    }
  }
}

TEST_F(FileIoTest, WhatWasWrittenPastTheCacheCanBeReadBackAndContinued) {
  const std::string bytes = RandomBytes((2u << 20) + 777);
  OutputFile file(Path(), {}, Caching::kPastCache);
  file.Append(std::string_view(bytes).substr(0, 5000));
  EXPECT_EQ(Content(file.Written()), bytes.substr(0, 5000));
  file.Append(std::string_view(bytes).substr(5000));
  file.Commit();
  EXPECT_EQ(Content(Path()), bytes);
}

TEST_F(FileIoTest, ADiscardedFileLeavesNothing) {
  OutputFile file(Path(), {}, Caching::kPastCache);
  file.Append(RandomBytes(3u << 20));
  file.Discard();
  file.Discard();
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(FileIoTest, AnyRangeIsReadPastTheCacheAndFromIt) {
  const std::string bytes = RandomBytes((1u << 20) + 4097);
  Write(bytes);
  for (const bool cold : {true, false}) {
    if (cold) ForgetPages();
    const InputFile file(Path(), Caching::kPastCache);
    std::mt19937_64 random(7);
    TransferBuffer buffer;
    for (int round = 0; round < 300; ++round) {
      const size_t offset = random() % bytes.size();
      const size_t size = std::min<size_t>(random() % (round % 2 == 0 ? 9000 : 300000), bytes.size() - offset);
      EXPECT_EQ(file.ReadInto(offset, size, &buffer), std::string_view(bytes).substr(offset, size));
    }
    EXPECT_EQ(file.ReadInto(0, bytes.size(), &buffer), bytes);
  }
}

TEST_F(FileIoTest, ANameThatNoFileCanHaveIsTheCallersMistake) {
  try {
    OutputFile file("/tmp/" + std::string(5000, 'a'));
    FAIL() << "it was made";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
  }
}

TEST_F(FileIoTest, AFileThatEndsEarlyIsDataLoss) {
  Write(RandomBytes(10000));
  const InputFile file(Path(), Caching::kPastCache);
  TransferBuffer buffer;
  for (const auto& [offset, size] : {std::pair{0, 10001}, {9999, 2}, {4096, 8192}, {20000, 1}}) {
    EXPECT_THROW(file.ReadInto(offset, size, &buffer), Error) << offset << " " << size;
  }
  fs::resize_file(Path(), 5000);
  EXPECT_THROW(file.ReadInto(0, 10000, &buffer), Error);
}

TEST_F(FileIoTest, ASummedReadKnowsItsPieces) {
  for (const size_t size : {0u, 1u, 8192u, 100001u}) {
    const std::string bytes = RandomBytes(size);
    Write(bytes);
    for (const size_t piece : {size_t{4096}, size_t{8192}, size_t{1000}, size_t{1} << 20}) {
      ForgetPages();
      TransferBuffer buffer;
      const std::span<char> target(buffer.Reserve(size + 1), size);
      const std::vector<uint32_t> sums = ReadSummed(Path(), target, piece, 3);
      EXPECT_EQ(std::string_view(target.data(), size), bytes);
      ASSERT_EQ(sums.size(), (size + piece - 1) / piece);
      for (size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i], Crc32c(bytes.substr(i * piece, piece)));
    }
  }
  std::string target(200000, '\0');
  EXPECT_THROW(ReadSummed(Path(), target, 4096, 2), Error);
  EXPECT_THROW(ReadSummed(Path() + ".missing", target, 4096, 2), Error);
}

}  // namespace
}  // namespace monolith
