// Zeroed blocks of 64 to 2,048 bytes in powers of two, cut from large mappings; freed blocks are kept for reuse by
// size.
//
// Thread-safe. Memory is returned to the system only on destruction, so a racing reader of a freed block reads stale
// bytes of another block, never unmapped memory.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "base/mutex.h"

namespace monolith {

class BlockArena {
 public:
  static constexpr size_t kMinBlock = 64;
  static constexpr size_t kMaxBlock = 2048;

  BlockArena() = default;
  ~BlockArena();
  BlockArena(const BlockArena&) = delete;
  BlockArena& operator=(const BlockArena&) = delete;

  // REQUIRES: bytes is a power of two in [kMinBlock, kMaxBlock].
  std::byte* Allocate(size_t bytes);
  void Free(std::byte* block, size_t bytes);
  // Bytes allocated and not freed.
  size_t used_bytes() const;

 private:
  struct Mapping {
    std::byte* begin;
    size_t bytes;
  };
  static size_t ClassOf(size_t bytes);
  void AddMapping() REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::array<std::vector<std::byte*>, 6> free_ GUARDED_BY(mutex_);
  std::vector<Mapping> mappings_ GUARDED_BY(mutex_);
  std::byte* next_ GUARDED_BY(mutex_) = nullptr;
  size_t left_ GUARDED_BY(mutex_) = 0;
  size_t used_ GUARDED_BY(mutex_) = 0;
};

}  // namespace monolith
