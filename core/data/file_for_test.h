// An open file with given content that is visible to this object only and deleted with it: for the tests of reading.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace monolith {

class FileOf {
 public:
  explicit FileOf(const std::string& bytes) : file_(std::tmpfile()) {
    EXPECT_EQ(std::fwrite(bytes.data(), 1, bytes.size(), file_), bytes.size());
    std::fflush(file_);
  }
  ~FileOf() { std::fclose(file_); }
  FileOf(const FileOf&) = delete;
  FileOf& operator=(const FileOf&) = delete;

  int descriptor() const { return fileno(file_); }

 private:
  std::FILE* file_;
};

}  // namespace monolith
