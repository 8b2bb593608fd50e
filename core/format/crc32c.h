// CRC-32C (Castagnoli), the checksum of every byte the project writes. Pure functions; thread-safe.
//
// The processor's crc instruction is chosen at run time if it has one (SSE4.2, ARMv8); the portable twin returns the
// same values and is compared with it by crc32c_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace monolith {

// Checksum of A + B, given that of A and the bytes of B. The checksum of nothing is 0.
uint32_t Crc32cExtend(uint32_t crc, const void* data, size_t size);
inline uint32_t Crc32c(const void* data, size_t size) { return Crc32cExtend(0, data, size); }
inline uint32_t Crc32c(std::string_view bytes) { return Crc32cExtend(0, bytes.data(), bytes.size()); }

// The slicing-by-8 twin, for the test and for processors without the instruction.
uint32_t Crc32cExtendPortable(uint32_t crc, const void* data, size_t size);
// Whether Crc32cExtend uses the instruction here.
bool Crc32cUsesHardware();

// Record files store checksums masked: a checksum of bytes that contain checksums would otherwise be weak.
inline constexpr uint32_t kCrcMaskDelta = 0xa282ead8u;
inline constexpr uint32_t MaskCrc(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + kCrcMaskDelta; }
inline constexpr uint32_t UnmaskCrc(uint32_t masked) {
  const uint32_t rotated = masked - kCrcMaskDelta;
  return (rotated >> 17) | (rotated << 15);
}

}  // namespace monolith
