// Sleeping on a word of memory until another thread of this process changes it and wakes the sleepers. Pure functions;
// thread-safe. They imply no memory ordering: the atomics around them do.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace monolith {

// Sleeps while *word is `expected` and no thread wakes it. May return spuriously: check the word again.
inline void FutexWait(const std::atomic<uint32_t>* word, uint32_t expected) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

// Wakes at most `count` threads that sleep on the word. Only its address is used: the word may have been destroyed.
inline void FutexWake(const std::atomic<uint32_t>* word, int count) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

}  // namespace monolith
