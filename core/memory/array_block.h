// Several arrays in one block of memory: together they use huge pages for which each alone would be too small, and a
// loop that writes to several arrays needs one address translation instead of one for each. Owned by one object.
#pragma once

#include <cstddef>
#include <type_traits>

#include "memory/buffer.h"

namespace monolith {

class ArrayBlock {
 public:
  // Bytes of a block that holds an array of `count` elements of each type.
  template <typename... T>
  static size_t BytesFor(size_t count) {
    return (Rounded(count * sizeof(T)) + ... + 0);
  }

  ArrayBlock() = default;
  explicit ArrayBlock(size_t bytes) : block_(bytes) {}

  // The next `count` elements, uninitialised. REQUIRES: they fit.
  template <typename T>
  T* Take(size_t count) {
    static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);
    T* array = reinterpret_cast<T*>(block_.data() + used_);
    used_ += Rounded(count * sizeof(T));
    return array;
  }

 private:
  static size_t Rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }  // each begins with a cache line

  Buffer<std::byte> block_;
  size_t used_ = 0;
};

}  // namespace monolith
