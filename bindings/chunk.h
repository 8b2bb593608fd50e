// Memory for data read from a stream: owned by the NumPy array that is returned for it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "memory/recycled.h"
#include "vector_array.h"

namespace monolith {

// Fresh memory of a mebibyte or more costs as much as reading into it: the operating system clears every page at its
// first touch. So chunks are reused once no array refers to them.
class Chunk {
 public:
  explicit Chunk(size_t size) : memory_(static_cast<char*>(TakeRecycled(size))), size_(size) {}
  ~Chunk() { GiveRecycled(memory_, size_); }
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;

  std::span<char> bytes() const { return {memory_, size_}; }

 private:
  char* const memory_;
  const size_t size_;
};

// Returns the first bytes of a chunk, which lives as long as the array and every view of it. REQUIRES: the GIL is held.
inline VectorArray<uint8_t> ArrayOfChunk(std::unique_ptr<Chunk> chunk, size_t size) {
  auto* data = reinterpret_cast<uint8_t*>(chunk->bytes().data());
  const nanobind::capsule owner(chunk.get(), [](void* p) noexcept { delete static_cast<Chunk*>(p); });
  static_cast<void>(chunk.release());
  return VectorArray<uint8_t>(data, {size}, owner);
}

}  // namespace monolith
