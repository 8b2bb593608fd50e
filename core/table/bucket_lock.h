// The lock of one bucket. Its word is also a version, which readers check instead of locking (a seqlock).
//
// Writers take the lock; the version is odd while a writer holds it. A reader without the lock notes the version,
// copies the data, and accepts the copy iff the version was even and has not changed, with a ReadFence() on either side
// of the copy. Such a reader may see torn data before it checks, so all memory it can reach must stay mapped and every
// number in it must be usable. The thread sanitizer cannot follow fences: under it readers take the lock
// (kReadersLock).
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#if defined(__SANITIZE_THREAD__)
#define MONOLITH_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MONOLITH_THREAD_SANITIZER 1
#endif
#endif

namespace monolith {

#ifdef MONOLITH_THREAD_SANITIZER
inline constexpr bool kReadersLock = true;
inline void ReadFence() {}
inline void WriteFence() {}
#else
inline constexpr bool kReadersLock = false;
inline void ReadFence() { std::atomic_thread_fence(std::memory_order_acquire); }
// Orders writes after writes. A release fence would do; on aarch64 that also waits for every load and prefetch in
// flight, of which a writer has dozens, so the narrower barrier is named there.
inline void WriteFence() {
#ifdef __aarch64__
  asm volatile("dmb ishst" ::: "memory");
#else
  std::atomic_thread_fence(std::memory_order_release);
#endif
}
#endif

// Four bytes, without padding: the versions of all buckets fit the nearest cache of every reader. Writers take
// neighbouring buckets one after another on one thread, so they seldom share a line with another writer.
class BucketLock {
 public:
  bool TryLock() {
    uint32_t version = version_.load(std::memory_order_relaxed);
    if ((version & 1u) != 0) return false;
    if (!version_.compare_exchange_strong(version, version + 1, std::memory_order_acquire, std::memory_order_relaxed)) {
      return false;
    }
    WriteFence();  // no write of the holder may become visible before the odd version
    return true;
  }

  void Lock() {
    for (int tries = 0; !TryLock(); ++tries) {
      if (tries > 64) std::this_thread::yield();  // the lock holder may have been preempted
    }
  }

  void Unlock() { version_.store(version_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  // For a lock holder that changed nothing that readers can see: concurrent readers stay valid.
  void UnlockUnchanged() { version_.store(version_.load(std::memory_order_relaxed) - 1, std::memory_order_release); }

  uint32_t Version() const { return version_.load(std::memory_order_relaxed); }
  static bool IsStable(uint32_t version) { return (version & 1u) == 0; }

 private:
  std::atomic<uint32_t> version_{0};
};

enum class Access { kChanges, kReads };

class BucketGuard {
 public:
  BucketGuard(BucketLock& lock, Access access) : lock_(lock), access_(access) { lock_.Lock(); }
  ~BucketGuard() { access_ == Access::kChanges ? lock_.Unlock() : lock_.UnlockUnchanged(); }
  BucketGuard(const BucketGuard&) = delete;
  BucketGuard& operator=(const BucketGuard&) = delete;

 private:
  BucketLock& lock_;
  const Access access_;
};

}  // namespace monolith
