#include "format/file_io.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"

namespace monolith {
namespace {

// Linux writes at most 2^31 - 4096 bytes a call; smaller writes stay in the documented range of every platform.
constexpr size_t kLargestTransfer = size_t{1} << 30;

#if defined(__linux__)
constexpr int kPastCacheFlag = O_DIRECT;
#else
constexpr int kPastCacheFlag = 0;
#endif

uint64_t UnitsBefore(uint64_t bytes) { return bytes / kTransferUnit * kTransferUnit; }
uint64_t UnitsAround(uint64_t bytes) { return UnitsBefore(bytes + kTransferUnit - 1); }

Code CodeOf(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return Code::kStorageFull;
    case ENOENT: return Code::kNotFound;
    case ENAMETOOLONG:
    case ELOOP: return Code::kInvalidArgument;  // such a name fails on any disk, at any time
    default: return Code::kUnavailable;
  }
}

[[noreturn]] void ThrowSystemError(const std::string& path, const char* doing, int error) {
  throw Error(CodeOf(error), QuotedFile(path) + ": " + doing + " failed: " + std::generic_category().message(error));
}

}  // namespace

std::string QuotedFile(const std::string& path) { return "file '" + path + "'"; }

char* TransferBuffer::Reserve(size_t bytes) {
  if (bytes <= capacity_) return memory_.get();
  memory_.reset();
  capacity_ = UnitsAround(bytes);
  memory_.reset(static_cast<char*>(std::aligned_alloc(kTransferUnit, capacity_)));
  if (memory_ == nullptr) throw std::bad_alloc();
  return memory_.get();
}

void TransferBuffer::Free::operator()(char* memory) const { std::free(memory); }

OutputFile::OutputFile(std::string path, std::string temporary_path, Caching caching)
    : path_(std::move(path)), temporary_path_(temporary_path.empty() ? path_ + ".tmp" : std::move(temporary_path)) {
  direct_ = caching == Caching::kPastCache && kPastCacheFlag != 0;
  if (direct_) {
    units_.Reserve(kGather);
    Open(kPastCacheFlag);
    direct_ = descriptor_ >= 0;
  }
  if (!direct_) Open(0);
  if (descriptor_ < 0) ThrowSystemError(temporary_path_, "creating", errno);
}

void OutputFile::Open(int flags) {
  descriptor_ = ::open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | flags, 0666);
}

OutputFile::~OutputFile() { Discard(); }

void OutputFile::Discard() {
  if (descriptor_ < 0) return;
  ::close(std::exchange(descriptor_, -1));
  ::unlink(temporary_path_.c_str());
}

void OutputFile::WriteFully(const char* data, size_t size) {
  while (size > 0) {
    const ssize_t done = ::write(descriptor_, data, std::min(size, kLargestTransfer));
    if (done < 0) {
      if (errno == EINTR) continue;
      if (errno == EINVAL && direct_) {  // some file systems accept the flag and reject the write
        LeaveDirect();
        continue;
      }
      ThrowSystemError(temporary_path_, "writing", errno);
    }
    data += done;
    size -= static_cast<size_t>(done);
    written_ += static_cast<uint64_t>(done);
  }
  StartWriteback();
}

// Without this the disk idles until fsync and then stalls all other writers; a hint, so its failure does not matter.
void OutputFile::StartWriteback() {
#if defined(__linux__)
  if (direct_ || written_ - writeback_started_ < kWritebackStep) return;
  ::sync_file_range(descriptor_, static_cast<off_t>(writeback_started_),
                    static_cast<off_t>(written_ - writeback_started_), SYNC_FILE_RANGE_WRITE);
  writeback_started_ = written_;
#endif
}

// From here on bytes go through the cache: for the last ones, which do not fill a unit.
void OutputFile::LeaveDirect() {
  direct_ = false;
  if (::fcntl(descriptor_, F_SETFL, 0) != 0) ThrowSystemError(temporary_path_, "writing", errno);
}

void OutputFile::FlushGathered() {
  if (num_units_bytes_ > 0) {
    const size_t whole = direct_ ? UnitsBefore(num_units_bytes_) : num_units_bytes_;
    WriteFully(units_.data(), whole);
    if (direct_ && whole < num_units_bytes_) LeaveDirect();
    WriteFully(units_.data() + whole, num_units_bytes_ - whole);
    num_units_bytes_ = 0;
  }
  if (gathered_.empty()) return;
  WriteFully(gathered_.data(), gathered_.size());
  gathered_.clear();
}

void OutputFile::AppendUnits(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t taken = std::min(bytes.size(), kGather - num_units_bytes_);
    std::memcpy(units_.data() + num_units_bytes_, bytes.data(), taken);
    num_units_bytes_ += taken;
    bytes.remove_prefix(taken);
    if (num_units_bytes_ == kGather) FlushGathered();
  }
}

void OutputFile::Append(std::string_view bytes) {
  size_ += bytes.size();
  if (direct_) return AppendUnits(bytes);
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

InputFile::InputFile(std::string path, Caching caching) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe without a writer must not block
  if (descriptor_ < 0) ThrowSystemError(path_, "opening", errno);
  struct stat status{};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    const int error = S_ISREG(status.st_mode) ? errno : EINVAL;
    ::close(descriptor_);
    ThrowSystemError(path_, "reading as a regular file", error);
  }
  size_ = static_cast<uint64_t>(status.st_size);
#if defined(__linux__)
  ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_SEQUENTIAL);  // a hint: wider read-ahead
#endif
  if (caching == Caching::kThroughCache || kPastCacheFlag == 0 || size_ == 0) return;
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor_, 0);
  if (mapped == MAP_FAILED) return;
  mapped_ = mapped;
  direct_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | kPastCacheFlag);
}

InputFile::~InputFile() {
  if (mapped_ != nullptr) ::munmap(mapped_, size_);
  if (direct_ >= 0) ::close(direct_);
  ::close(descriptor_);
}

// Reading cached bytes past the cache would be slower. A file of another user counts as cached: the system does not
// report it.
bool InputFile::IsCached(uint64_t offset, size_t size) const {
#if defined(__linux__)
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t begin = offset / page * page;
  std::vector<unsigned char> resident((offset + size - begin + page - 1) / page);
  if (::mincore(static_cast<char*>(mapped_) + begin, offset + size - begin, resident.data()) != 0) return false;
  return std::all_of(resident.begin(), resident.end(), [](unsigned char page_state) { return (page_state & 1) != 0; });
#else
  (void)offset, (void)size;
  return true;
#endif
}

void InputFile::ReadUnits(uint64_t offset, char* data, size_t size) const {
  size_t done = 0;
  if (direct_ >= 0 && offset + size <= size_ && !IsCached(offset, size)) {
    while (done < UnitsBefore(size)) {
      const size_t wanted = std::min<size_t>(UnitsBefore(size) - done, kLargestTransfer);
      const ssize_t got = ::pread(direct_, data + done, wanted, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0 || UnitsBefore(static_cast<uint64_t>(got)) == 0)
        break;  // the plain read below reports the error, if there is one
      done += UnitsBefore(static_cast<uint64_t>(got));
    }
  }
  ReadAt(offset + done, data + done, size - done);
}

std::string_view InputFile::ReadInto(uint64_t offset, size_t size, TransferBuffer* buffer) const {
  const uint64_t begin = UnitsBefore(offset);
  const uint64_t end = std::max<uint64_t>(offset + size, std::min(UnitsAround(offset + size), size_));
  char* data = buffer->Reserve(end - begin);
  ReadUnits(begin, data, end - begin);
  return {data + (offset - begin), size};
}

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
  // Some file systems cannot sync a folder and return EINVAL: they order renames themselves.
  if (result != 0 && error != EINVAL) ThrowSystemError(path, "fsync of the folder", error);
}

}  // namespace monolith
