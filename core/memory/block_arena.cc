#include "memory/block_arena.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "memory/pages.h"

namespace monolith {
namespace {

constexpr size_t kFirstMapping = 2 * kHugePage;
constexpr size_t kLargestMapping = size_t{64} << 20;

}  // namespace

BlockArena::~BlockArena() {
  for (const Mapping& mapping : mappings_) UnmapPages(mapping.begin, mapping.bytes);
}

size_t BlockArena::ClassOf(size_t bytes) {
  MONOLITH_CHECK(std::has_single_bit(bytes) && bytes >= kMinBlock && bytes <= kMaxBlock);
  return static_cast<size_t>(std::countr_zero(bytes) - std::countr_zero(kMinBlock));
}

void BlockArena::AddMapping() {
  const bool first = mappings_.empty();
  const size_t bytes = first ? kFirstMapping : std::min(kLargestMapping, mappings_.back().bytes * 2);
  next_ = MapPages(bytes, first ? bytes : 0);
  left_ = bytes;
  mappings_.push_back({next_, bytes});
}

std::byte* BlockArena::Allocate(size_t bytes) {
  const size_t size_class = ClassOf(bytes);
  MutexLock lock(mutex_);
  used_ += bytes;
  if (!free_[size_class].empty()) {
    std::byte* block = free_[size_class].back();
    free_[size_class].pop_back();
    std::memset(block, 0, bytes);
    return block;
  }
  if (left_ < bytes) AddMapping();  // the unused rest is smaller than one block
  std::byte* block = next_;
  next_ += bytes;
  left_ -= bytes;
  return block;
}

void BlockArena::Free(std::byte* block, size_t bytes) {
  MutexLock lock(mutex_);
  used_ -= bytes;
  free_[ClassOf(bytes)].push_back(block);
}

size_t BlockArena::used_bytes() const {
  MutexLock lock(mutex_);
  return used_;
}

}  // namespace monolith
