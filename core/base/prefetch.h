// Asks memory for what will be needed soon. Pure hints: any address may be given, and results never depend on them.
//
// Always inline: gcc takes a function that does nothing but prefetch for one without effect and drops the calls to it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace monolith {

inline constexpr size_t kCacheLine = 64;

// For what is needed next.
[[gnu::always_inline]] inline void Prefetch(const void* address) { __builtin_prefetch(address); }

// For what is needed a while later, where many requests are under way: into the second cache on aarch64. The first one
// of a Neoverse N1 waits for about 8 lines at a time, the second one for about 12. Elsewhere it is Prefetch().
[[gnu::always_inline]] inline void PrefetchFar(const void* address) {
#ifdef __aarch64__
  __builtin_prefetch(address, 0, 2);
#else
  __builtin_prefetch(address);
#endif
}

// A line for every 64 bytes of [address, address + bytes), counted from its beginning.
[[gnu::always_inline]] inline void PrefetchLines(const void* address, size_t bytes) {
  const auto* first = static_cast<const char*>(address);
  for (size_t offset = 0; offset < bytes; offset += kCacheLine) __builtin_prefetch(first + offset);
}

}  // namespace monolith
