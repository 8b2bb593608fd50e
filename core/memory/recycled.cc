#include "memory/recycled.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <new>

#include "base/forks.h"
#include "base/mutex.h"
#include "memory/pages.h"

namespace monolith {
namespace {

constexpr size_t kSmallestKept = size_t{32} << 10;  // below this malloc is as good
constexpr size_t kLargestKept = size_t{64}
                                << 20;  // beyond this a batch is so large that clearing pages does not matter
constexpr int kBlocksPerSize = 8;
constexpr size_t kBytesPerSize = size_t{128} << 20;  // of the largest blocks fewer are kept
constexpr int kNumSizes = std::bit_width(kLargestKept) - std::bit_width(kSmallestKept) + 1;

struct Shelf {
  std::array<void*, kBlocksPerSize> blocks;
  int count = 0;
};

struct Store {
  Mutex mutex;
  std::array<Shelf, kNumSizes> shelves GUARDED_BY(mutex);
};

Store& TheStore() {
  static auto* store = new Store;  // never destroyed: other threads may outlive the statics
  return *store;
}

class StoreInForks final : AtRestInForks {
 public:
  StoreInForks() : AtRestInForks(Kind::kMemory) {}

 private:
  void Rest() override ACQUIRE(TheStore().mutex) { TheStore().mutex.Lock(); }
  void GoOnInParent() override RELEASE(TheStore().mutex) { TheStore().mutex.Unlock(); }
  void GoOnInChild() override RELEASE(TheStore().mutex) { TheStore().mutex.Unlock(); }
};
// Created when the library is loaded, because calls that a fork waits for use the store; leaked like it.
[[maybe_unused]] const auto* const store_in_forks = new StoreInForks;

bool IsKept(size_t bytes) { return bytes >= kSmallestKept && bytes <= kLargestKept; }

size_t RoundedSize(size_t bytes) {
  return IsKept(bytes) ? std::bit_ceil(bytes) : (std::max<size_t>(bytes, 1) + 63) / 64 * 64;
}

Shelf& ShelfFor(size_t bytes) REQUIRES(TheStore().mutex) {
  return TheStore().shelves[std::bit_width(std::bit_ceil(bytes)) - std::bit_width(kSmallestKept)];
}

// Large blocks use huge pages if the system grants them: batches have scattered accesses.
void* Allocate(size_t size) {
  const bool huge = size >= kHugePage && size % kHugePage == 0;
  void* block = std::aligned_alloc(huge ? kHugePage : 64, size);
  if (block == nullptr) throw std::bad_alloc();
  if (huge) AdviseHugePages(block, size);
  return block;
}

}  // namespace

void* TakeRecycled(size_t bytes) {
  if (IsKept(bytes)) {
    MutexLock lock(TheStore().mutex);
    Shelf& shelf = ShelfFor(bytes);
    if (shelf.count > 0) return shelf.blocks[--shelf.count];
  }
  return Allocate(RoundedSize(bytes));
}

void GiveRecycled(void* block, size_t bytes) noexcept {
  if (IsKept(bytes)) {
    MutexLock lock(TheStore().mutex);
    Shelf& shelf = ShelfFor(bytes);
    if (shelf.count < kBlocksPerSize && (shelf.count + 1) * std::bit_ceil(bytes) <= kBytesPerSize) {
      shelf.blocks[shelf.count++] = block;
      return;
    }
  }
  std::free(block);
}

}  // namespace monolith
