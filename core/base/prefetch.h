// Prefetches memory that will be needed soon. Pure hints: any address may be given, and results never depend on them.
//
// Always inline: gcc treats a function that only prefetches as one without effect and drops the calls to it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace monolith {

inline constexpr size_t kCacheLine = 64;

// For memory that is needed next.
[[gnu::always_inline]] inline void Prefetch(const void* address) { __builtin_prefetch(address); }

// For memory that is needed somewhat later, when many prefetches are in flight: into the second-level cache on aarch64.
// The first level of a Neoverse N1 has about 8 lines in flight at a time, the second about 12. Elsewhere the same as
// Prefetch().
[[gnu::always_inline]] inline void PrefetchFar(const void* address) {
#ifdef __aarch64__
  __builtin_prefetch(address, 0, 2);
#else
  __builtin_prefetch(address);
#endif
}

// Prefetches a line for every 64 bytes of [address, address + bytes), counted from its beginning.
[[gnu::always_inline]] inline void PrefetchLines(const void* address, size_t bytes) {
  const auto* first = static_cast<const char*>(address);
  for (size_t offset = 0; offset < bytes; offset += kCacheLine) __builtin_prefetch(first + offset);
}

}  // namespace monolith
