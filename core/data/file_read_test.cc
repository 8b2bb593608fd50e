#include "data/file_read.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <random>
#include <string>

#include "base/error.h"
#include "data/file_for_test.h"

namespace monolith {
namespace {

std::string RandomBytes(size_t size) {
  std::mt19937 random(301);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

TEST(FileRead, GivesTheBytesOfAnyStretch) {
  const std::string bytes = RandomBytes(5'000'000);
  const FileOf file(bytes);
  for (const uint64_t offset : {0, 1, 4096, 3'000'001}) {
    for (const size_t size : {0, 1, 600'000, 1'999'999}) {
      std::string target(size, 'x');
      EXPECT_EQ(ReadFile(file.descriptor(), offset, target), size);
      EXPECT_EQ(target, bytes.substr(offset, size));
    }
  }
}

TEST(FileRead, IsShortAtTheEndOnly) {
  const std::string bytes = RandomBytes(1'700'000);
  const FileOf file(bytes);
  for (const uint64_t offset : {0, 1'000'000, 1'699'999, 1'700'000, 9'000'000}) {
    std::string target(4'000'000, 'x');
    const uint64_t got = ReadFile(file.descriptor(), offset, target);
    EXPECT_EQ(got, offset < bytes.size() ? bytes.size() - offset : 0);
    EXPECT_EQ(target.substr(0, got), got != 0 ? bytes.substr(offset) : "");
  }
}

TEST(FileRead, ReportsWhatTheSystemRefuses) {
  std::string target(10, 'x');
  EXPECT_THROW(ReadFile(-1, 0, target), Error);
}

}  // namespace
}  // namespace monolith
