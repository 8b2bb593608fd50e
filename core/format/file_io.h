// Checked file access: every system call that can fail is checked, and every failure names the file.
//
// An object belongs to one thread at a time, except that InputFile::ReadAt is thread-safe. "No space" (also quota and
// file-size limits) is Error(kStorageFull), a missing file kNotFound, a path that is too long or has too many links
// kInvalidArgument, all else kUnavailable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace monolith {

// Whether bytes go through the page cache. Bypassing it costs next to no processor time and leaves the cache to others,
// but caches nothing for the next reader of the file. If a file system does not support this, the cache is used.
enum class Caching { kThroughCache, kPastCache };

// Alignment of offset, length and memory of a transfer that bypasses the page cache.
constexpr size_t kTransferUnit = 4096;

// Uninitialised memory that begins on a transfer unit; grows, never shrinks.
class TransferBuffer {
 public:
  // Makes room for this many bytes; the content is lost when it has to grow.
  char* Reserve(size_t bytes);
  char* data() { return memory_.get(); }

 private:
  struct Free {
    void operator()(char* memory) const;
  };
  std::unique_ptr<char, Free> memory_;
  size_t capacity_ = 0;
};

// A file that is created completely or not at all: bytes go to a temporary name, Commit() makes them durable and
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

  // Passes all bytes to the operating system and returns the name under which they can be read back before Commit().
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
  uint64_t written_ = 0;  // passed to the operating system
  uint64_t writeback_started_ = 0;
  std::string gathered_;
  bool direct_ = false;   // bypasses the page cache: only complete units of `units_` are written
  TransferBuffer units_;  // kGather bytes if direct_ was ever true
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
  // Reads exactly `size` bytes; throws Error(kDataLoss) if the file ends before.
  void ReadAt(uint64_t offset, char* data, size_t size) const;
  // As ReadAt(), in the caching mode of the file, if offset and data begin on a transfer unit. Bytes that are in the
  // page cache are read from there.
  void ReadUnits(uint64_t offset, char* data, size_t size) const;
  // As ReadUnits() for any offset, into a buffer; returns the bytes, which lie somewhere in it.
  std::string_view ReadInto(uint64_t offset, size_t size, TransferBuffer* buffer) const;

 private:
  bool IsCached(uint64_t offset, size_t size) const;

  std::string path_;
  int descriptor_ = -1;
  int direct_ = -1;         // bypasses the page cache; -1: not wanted or not possible
  void* mapped_ = nullptr;  // never read, only used to query which pages are cached; null if direct_ is -1
  uint64_t size_ = 0;
};

// Makes renames and removals inside a folder durable.
void SyncDirectory(const std::string& path);

// Returns "file '<path>'", the form in which messages name a file.
std::string QuotedFile(const std::string& path);

}  // namespace monolith
