// Sleeping on a word of memory until another thread of this process changes it and wakes the sleepers. Pure functions;
// any thread may call. They order nothing by themselves: the atomics around them do.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace monolith {

// Sleeps while *word is `expected` and nobody wakes it. May also return for no reason: ask the word again.
inline void FutexWait(const std::atomic<uint32_t>* word, uint32_t expected) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

// Wakes at most `count` of those who sleep on the word. It is only an address: what was there may be gone.
inline void FutexWake(const std::atomic<uint32_t>* word, int count) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

}  // namespace monolith
