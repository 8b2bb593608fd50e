#include "format/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace monolith {
namespace {

// Linux writes at most 2^31 - 4096 bytes a call; asking for less keeps every platform in its documented range.
constexpr size_t kLargestTransfer = size_t{1} << 30;

Code CodeOf(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return Code::kResourceExhausted;
    case ENOENT: return Code::kNotFound;
    default: return Code::kUnavailable;
  }
}

[[noreturn]] void ThrowSystemError(const std::string& path, const char* doing, int error) {
  throw Error(CodeOf(error), QuotedFile(path) + ": " + doing + " failed: " + std::generic_category().message(error));
}

}  // namespace

std::string QuotedFile(const std::string& path) { return "file '" + path + "'"; }

OutputFile::OutputFile(std::string path, std::string temporary_path)
    : path_(std::move(path)), temporary_path_(temporary_path.empty() ? path_ + ".tmp" : std::move(temporary_path)) {
  descriptor_ = ::open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) ThrowSystemError(temporary_path_, "creating", errno);
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_path_.c_str());
}

void OutputFile::WriteFully(const char* data, size_t size) {
  while (size > 0) {
    const ssize_t done = ::write(descriptor_, data, std::min(size, kLargestTransfer));
    if (done < 0) {
      if (errno == EINTR) continue;
      ThrowSystemError(temporary_path_, "writing", errno);
    }
    data += done;
    size -= static_cast<size_t>(done);
    written_ += static_cast<uint64_t>(done);
  }
  StartWriteback();
}

// Without this the disk idles until fsync and then holds up everyone who writes; a hint, so its failure does not
// matter.
void OutputFile::StartWriteback() {
#if defined(__linux__)
  if (written_ - writeback_started_ < kWritebackStep) return;
  ::sync_file_range(descriptor_, static_cast<off_t>(writeback_started_),
                    static_cast<off_t>(written_ - writeback_started_), SYNC_FILE_RANGE_WRITE);
  writeback_started_ = written_;
#endif
}

void OutputFile::FlushGathered() {
  if (gathered_.empty()) return;
  WriteFully(gathered_.data(), gathered_.size());
  gathered_.clear();
}

void OutputFile::Append(std::string_view bytes) {
  size_ += bytes.size();
  if (bytes.size() >= kGather / 4) {
    FlushGathered();
    WriteFully(bytes.data(), bytes.size());
    return;
  }
  gathered_.append(bytes);
  if (gathered_.size() >= kGather) FlushGathered();
}

const std::string& OutputFile::Written() {
  FlushGathered();
  return temporary_path_;
}

void OutputFile::Commit() {
  FlushGathered();
  if (::fsync(descriptor_) != 0) ThrowSystemError(temporary_path_, "fsync", errno);
  const int closing = std::exchange(descriptor_, -1);
  if (::close(closing) != 0) {
    const int error = errno;
    ::unlink(temporary_path_.c_str());
    ThrowSystemError(temporary_path_, "closing", error);
  }
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_path_.c_str());
    ThrowSystemError(path_, "renaming into place", error);
  }
}

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) ThrowSystemError(path_, "opening", errno);
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    const int error = S_ISREG(status.st_mode) ? errno : EINVAL;
    ::close(descriptor_);
    ThrowSystemError(path_, "reading as a regular file", error);
  }
  size_ = static_cast<uint64_t>(status.st_size);
#if defined(__linux__)
  ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_SEQUENTIAL);  // a hint: wider read-ahead
#endif
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::ReadAt(uint64_t offset, char* data, size_t size) const {
  while (size > 0) {
    const ssize_t done = ::pread(descriptor_, data, std::min(size, kLargestTransfer), static_cast<off_t>(offset));
    if (done < 0) {
      if (errno == EINTR) continue;
      ThrowSystemError(path_, "reading", errno);
    }
    if (done == 0) {
      throw Error(Code::kDataLoss, QuotedFile(path_) + ": offset " + std::to_string(offset) + ": the file ends here, " +
                                       std::to_string(size) + " bytes early (truncated)");
    }
    data += done;
    size -= static_cast<size_t>(done);
    offset += static_cast<uint64_t>(done);
  }
}

void SyncDirectory(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) ThrowSystemError(path, "opening the folder", errno);
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  // Some file systems cannot sync a folder and say EINVAL: they order renames themselves.
  if (result != 0 && error != EINVAL) ThrowSystemError(path, "fsync of the folder", error);
}

}  // namespace monolith
