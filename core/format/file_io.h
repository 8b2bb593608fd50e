// Checked file access: every call of the operating system that can fail is looked at, and every failure names the file.
//
// An object belongs to one thread at a time, except that InputFile::ReadAt may be called by many threads at once.
// "No space" (also quota and file-size limits) is Error(kResourceExhausted), a missing file kNotFound, all else
// kUnavailable.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace monolith {

// A file that comes into being whole or not at all: bytes go to a temporary name, Commit() makes them durable and
// renames. Destroyed without Commit(), it removes what it wrote.
class OutputFile {
 public:
  // The temporary name is `<path>.tmp` unless another is given; it must lie in the same folder.
  explicit OutputFile(std::string path, std::string temporary_path = {});
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Large pieces go straight to the operating system, small ones are gathered to kGather bytes first.
  void Append(std::string_view bytes);
  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }

  // Hands all bytes to the operating system and says under which name they can be read back before Commit().
  const std::string& Written();
  // Flush, fsync, close, rename. The folder itself is synced by SyncDirectory, once for all its files.
  void Commit();

 private:
  static constexpr size_t kGather = size_t{1} << 20;
  static constexpr uint64_t kWritebackStep = uint64_t{8} << 20;

  void WriteFully(const char* data, size_t size);
  void FlushGathered();
  void StartWriteback();

  std::string path_;
  std::string temporary_path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;     // appended by the caller
  uint64_t written_ = 0;  // given to the operating system
  uint64_t writeback_started_ = 0;
  std::string gathered_;
};

class InputFile {
 public:
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  // Exactly `size` bytes; a file that ends before is Error(kDataLoss).
  void ReadAt(uint64_t offset, char* data, size_t size) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

// Makes renames and removals inside a folder durable.
void SyncDirectory(const std::string& path);

// "file '<path>'": how messages name a file.
std::string QuotedFile(const std::string& path);

}  // namespace monolith
