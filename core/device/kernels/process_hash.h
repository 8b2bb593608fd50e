// HashInProcess() of base/process_key.h with its key as an argument: compiled kernels are kept on disk, the key belongs
// to one process.
#pragma once

#include <cstdint>

namespace monolith::device {

// Use the upper bits.
inline uint64_t HashWithKey(uint64_t x, uint64_t process_key) {
  x = (x ^ (x >> 32)) * process_key;
  return (x ^ (x >> 32)) * process_key;
}

}  // namespace monolith::device
