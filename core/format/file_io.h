// Checked file access: every call of the operating system that can fail is looked at, and every failure names the file.
//
// An object belongs to one thread at a time, except that InputFile::ReadAt may be called by many threads at once.
// "No space" (also quota and file-size limits) is Error(kStorageFull), a missing file kNotFound, all else
// kUnavailable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace monolith {

// Whether bytes go through the page cache. Past it a transfer costs next to no processor time and leaves the cache to
// others, but nothing is kept for who reads the file next. Where a file system cannot do it, the cache is used.
enum class Caching { kThroughCache, kPastCache };

// What offset, length and memory of a transfer past the page cache are multiples of.
constexpr size_t kTransferUnit = 4096;

// Uninitialised memory that begins on a transfer unit; grows, never shrinks.
class TransferBuffer {
 public:
  // Room for this many bytes; what it held is lost when it has to grow.
  char* Reserve(size_t bytes);
  char* data() { return memory_.get(); }

 private:
  struct Free {
    void operator()(char* memory) const;
  };
  std::unique_ptr<char, Free> memory_;
  size_t capacity_ = 0;
};

// A file that comes into being whole or not at all: bytes go to a temporary name, Commit() makes them durable and
// renames. Destroyed without Commit(), it removes what it wrote.
class OutputFile {
 public:
  // The temporary name is `<path>.tmp` unless another is given; it must lie in the same folder.
  explicit OutputFile(std::string path, std::string temporary_path = {}, Caching caching = Caching::kThroughCache);
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
  // Removes what was written, now instead of at destruction. Nothing else may be called afterwards.
  void Discard();

 private:
  static constexpr size_t kGather = size_t{1} << 20;
  static constexpr uint64_t kWritebackStep = uint64_t{8} << 20;

  void Open(int flags);
  void WriteFully(const char* data, size_t size);
  void AppendUnits(std::string_view bytes);
  void FlushGathered();
  void StartWriteback();
  void LeaveDirect();

  std::string path_;
  std::string temporary_path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;     // appended by the caller
  uint64_t written_ = 0;  // given to the operating system
  uint64_t writeback_started_ = 0;
  std::string gathered_;
  bool direct_ = false;   // past the page cache: only whole units of `units_` are written
  TransferBuffer units_;  // kGather bytes where direct_ was ever true
  size_t num_units_bytes_ = 0;
};

class InputFile {
 public:
  explicit InputFile(std::string path, Caching caching = Caching::kThroughCache);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  // Exactly `size` bytes; a file that ends before is Error(kDataLoss).
  void ReadAt(uint64_t offset, char* data, size_t size) const;
  // The same, by the way the file was opened for, if offset and data begin on a transfer unit. Bytes that are in the
  // page cache come from there.
  void ReadUnits(uint64_t offset, char* data, size_t size) const;
  // The same for any offset, into a buffer; says where in it the bytes are.
  std::string_view ReadInto(uint64_t offset, size_t size, TransferBuffer* buffer) const;

 private:
  bool IsCached(uint64_t offset, size_t size) const;

  std::string path_;
  int descriptor_ = -1;
  int direct_ = -1;         // past the page cache; -1: not wanted or not possible
  void* mapped_ = nullptr;  // never read, only asked what of it is in the page cache; null where direct_ is -1
  uint64_t size_ = 0;
};

// Makes renames and removals inside a folder durable.
void SyncDirectory(const std::string& path);

// "file '<path>'": how messages name a file.
std::string QuotedFile(const std::string& path);

}  // namespace monolith
