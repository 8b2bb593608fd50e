// One cache line of an index: 12 eight-bit tags, 12 row numbers and a count of entries that overflowed to later lines.
// Pure functions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace monolith {

inline constexpr int kLineEntries = 12;

struct alignas(64) IndexLine {
  uint8_t tags[kLineEntries];  // 0 = empty
  uint16_t zero;    // makes a line that is read as a row look like one that is not live (table/fast_row_reader.h)
  uint16_t passed;  // entries stored in later lines because this one was full
  uint32_t rows[kLineEntries];
};
static_assert(sizeof(IndexLine) == 64);

// Number of readable bytes after a line: a reader that has not found a row in a line may copy from there as if it had.
inline constexpr size_t kReadableBehindLine = 512;

// The line searched in an index without lines, and the readable bytes after it.
inline constexpr IndexLine kEmptyLines[1 + kReadableBehindLine / sizeof(IndexLine)] = {};
inline constexpr const IndexLine& kEmptyLine = kEmptyLines[0];

// Returns which entries of a line have a tag, as a word with one bit for each of them, `kMatchStride` apart.
// Branch-free: the matching entry cannot be predicted. The portable form is always compiled, and compared with the
// other by row_index_test.cc.
inline uint64_t MatchTagsPortable(const IndexLine& line, uint8_t tag) {
  constexpr uint64_t kOnes = 0x0101010101010101ull, kLows = 0x7f7f7f7f7f7f7f7full;
  constexpr uint64_t kGather = 0x0002040810204081ull;  // gathers the top bits of eight bytes in the top byte
  const auto zero_bytes = [](uint64_t word) { return ~(((word & kLows) + kLows) | word | kLows); };
  uint64_t low;
  uint32_t high;
  std::memcpy(&low, line.tags, 8);
  std::memcpy(&high, line.tags + 8, 4);
  const uint64_t found_low = zero_bytes(low ^ kOnes * tag);
  const uint64_t found_high =
      zero_bytes((uint64_t{high} | ~uint64_t{0} << 32) ^ (kOnes * tag & 0xffffffffu)) & 0xffffffffu;
  return (found_low * kGather) >> 56 | ((found_high * kGather) >> 56) << 8;
}

#if defined(__aarch64__)
inline constexpr int kMatchStride = 4;
inline uint64_t MatchTags(const IndexLine& line, uint8_t tag) {
  const uint8x16_t equal = vceqq_u8(vld1q_u8(line.tags), vdupq_n_u8(tag));  // reads `zero` and `passed` too
  const uint8x8_t nibbles = vshrn_n_u16(vreinterpretq_u16_u8(equal), 4);
  return vget_lane_u64(vreinterpret_u64_u8(nibbles), 0) & 0x0000888888888888ull;
}
#elif defined(__SSE2__)
inline constexpr int kMatchStride = 1;
inline uint64_t MatchTags(const IndexLine& line, uint8_t tag) {
  const __m128i tags = _mm_load_si128(reinterpret_cast<const __m128i*>(line.tags));  // reads `zero` and `passed` too
  return static_cast<uint64_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(tags, _mm_set1_epi8(static_cast<char>(tag)))) & 0xfff);
}
#else
inline constexpr int kMatchStride = 1;
inline uint64_t MatchTags(const IndexLine& line, uint8_t tag) { return MatchTagsPortable(line, tag); }
#endif

// REQUIRES: matches != 0.
inline int FirstMatch(uint64_t matches) { return std::countr_zero(matches) / kMatchStride; }

}  // namespace monolith
