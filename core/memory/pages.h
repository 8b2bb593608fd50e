// Anonymous memory straight from the kernel, on huge pages where the system grants them. Thread-safe: no shared state.
#pragma once

#include <cstddef>

namespace monolith {

inline constexpr size_t kHugePage = size_t{2} << 20;

// Returns a zeroed, huge-page aligned mapping that becomes resident as it is touched. Huge pages start `small_bytes`
// into it, so that a mapping of which little is used costs little. Throws kResourceExhausted.
std::byte* MapPages(size_t bytes, size_t small_bytes);
// A hint, for mapped memory of any origin. REQUIRES: `begin` lies on a page.
void AdviseHugePages(void* begin, size_t bytes);
void UnmapPages(std::byte* begin, size_t bytes);
// Size of an ordinary page.
size_t PageBytes();
// Returns the memory to the system while the addresses stay valid and read as zero.
void DropPages(std::byte* begin, size_t bytes);

}  // namespace monolith
