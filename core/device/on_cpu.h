// What kernels use of CUDA, for the compiler of the core: the text of device/kernels/ is plain C++ after this header.
//
// The variables that identify a thread belong to the thread of the system that runs it (device/cpu_launcher.cc).
// Atomic operations are real ones, so that the thread sanitizer finds races of the text. Shared memory belongs to a
// thread of the system, which runs one block at a time; the threads of a block that has barriers are fibers of it
// (device/fibers.h).
#pragma once

#include <cstdint>

#define __shared__ static thread_local

namespace monolith::device {

struct Place {
  uint32_t x;
};
inline constinit thread_local Place threadIdx{}, blockIdx{}, blockDim{}, gridDim{};

// Waits until all threads of the block have called it. REQUIRES: all of them do.
void __syncthreads();

// A word that other threads of the launch may change.
template <typename Word>
inline Word Peek(const Word* word) {
  return __atomic_load_n(word, __ATOMIC_RELAXED);
}

// Each returns the word as it was before. As on a GPU, they order no other access to memory.
template <typename Word>
inline Word atomicCAS(Word* word, Word expected, Word desired) {
  __atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
template <typename Word>
inline Word atomicAdd(Word* word, Word added) {
  return __atomic_fetch_add(word, added, __ATOMIC_RELAXED);
}
template <typename Word>
inline Word atomicExch(Word* word, Word desired) {
  return __atomic_exchange_n(word, desired, __ATOMIC_RELAXED);
}
template <typename Word>
inline Word atomicMax(Word* word, Word other) {
  Word seen = Peek(word);
  while (other > seen && !__atomic_compare_exchange_n(word, &seen, other, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return seen;
}
template <typename Word>
inline Word atomicMin(Word* word, Word other) {
  Word seen = Peek(word);
  while (other < seen && !__atomic_compare_exchange_n(word, &seen, other, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return seen;
}

}  // namespace monolith::device
