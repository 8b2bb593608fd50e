#include "memory/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/error.h"

namespace monolith {

std::byte* MapPages(size_t bytes, size_t small_bytes) {
  const size_t mapped = bytes + kHugePage;
  void* raw = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) {
    throw Error(Code::kResourceExhausted,
                "cannot map " + std::to_string(bytes) + " bytes of memory: " + std::strerror(errno));
  }
  auto* begin = static_cast<std::byte*>(raw);
  const size_t misfit = reinterpret_cast<uintptr_t>(begin) % kHugePage;
  const size_t skip = misfit == 0 ? 0 : kHugePage - misfit;
  if (skip != 0) munmap(begin, skip);
  if (mapped - skip > bytes) munmap(begin + skip + bytes, mapped - skip - bytes);
  begin += skip;
  if (small_bytes < bytes) AdviseHugePages(begin + small_bytes, bytes - small_bytes);
  return begin;
}

void AdviseHugePages(void* begin, size_t bytes) {
#ifdef MADV_HUGEPAGE
  madvise(begin, bytes, MADV_HUGEPAGE);
#else
  (void)begin, (void)bytes;
#endif
}

void UnmapPages(std::byte* begin, size_t bytes) { munmap(begin, bytes); }

size_t PageBytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

void DropPages(std::byte* begin, size_t bytes) { madvise(begin, bytes, MADV_DONTNEED); }

}  // namespace monolith
