#include "format/crc32c.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#include <wmmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#endif

namespace monolith {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the formats of this project are little-endian memory images");

constexpr uint32_t kPolynomial = 0x82f63b78u;  // bit-reversed 0x1edc6f41

using ByteTable = std::array<uint32_t, 256>;

constexpr std::array<ByteTable, 8> MakeSlicingTables() {
  std::array<ByteTable, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t slice = 1; slice < 8; ++slice) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t crc = tables[slice - 1][byte];
      tables[slice][byte] = (crc >> 8) ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}

constexpr std::array<ByteTable, 8> kSlicing = MakeSlicingTables();

inline uint64_t LoadWord(const unsigned char* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, 8);
  return word;
}

#if defined(__x86_64__) || defined(__aarch64__)
#define MONOLITH_CRC_HARDWARE 1

// x^(64 n - 33) modulo the polynomial, for n words, bit-reversed. The carry-less product of a crc register and this
// value, passed through the crc instruction, is the register after n words of zeros. (The instruction adds 32 to the
// power, and the product of two bit-reversed 32-bit numbers lacks 1.)
constexpr size_t kMostWords = 512;
constexpr size_t kFewestWords = 4;  // below, one stream is faster than three that have to be joined

constexpr std::array<uint32_t, 2 * kMostWords + 1> MakeWordPowers() {
  std::array<uint32_t, 2 * kMostWords + 1> powers{};
  powers[1] = 1;  // x^31
  for (size_t words = 2; words < powers.size(); ++words) {
    uint32_t power = powers[words - 1];
    for (int bit = 0; bit < 64; ++bit) power = (power >> 1) ^ ((power & 1) ? kPolynomial : 0);
    powers[words] = power;
  }
  return powers;
}

constexpr std::array<uint32_t, 2 * kMostWords + 1> kWordPowers = MakeWordPowers();

#if defined(__x86_64__)
#define MONOLITH_CRC_TARGET __attribute__((target("sse4.2,pclmul")))

MONOLITH_CRC_TARGET inline uint32_t StepWord(uint32_t crc, uint64_t word) {
  return static_cast<uint32_t>(_mm_crc32_u64(crc, word));
}
MONOLITH_CRC_TARGET inline uint32_t StepByte(uint32_t crc, unsigned char byte) { return _mm_crc32_u8(crc, byte); }

// The product of two polynomials over GF(2).
MONOLITH_CRC_TARGET inline uint64_t Times(uint32_t a, uint32_t b) {
  const __m128i product =
      _mm_clmulepi64_si128(_mm_cvtsi32_si128(static_cast<int>(a)), _mm_cvtsi32_si128(static_cast<int>(b)), 0);
  return static_cast<uint64_t>(_mm_cvtsi128_si64(product));
}

bool HasInstructions() { return __builtin_cpu_supports("sse4.2") != 0 && __builtin_cpu_supports("pclmul") != 0; }
#else
#define MONOLITH_CRC_TARGET

// Assembly instead of <arm_acle.h>: gcc and clang spell the target attribute differently, and clang's header hides the
// intrinsics unless the complete file is compiled for the extension.
inline uint32_t StepWord(uint32_t crc, uint64_t word) {
  asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
  return crc;
}
inline uint32_t StepByte(uint32_t crc, unsigned char byte) {
  asm(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(static_cast<uint32_t>(byte)));
  return crc;
}

// The product of two polynomials over GF(2).
inline uint64_t Times(uint32_t a, uint32_t b) {
  uint64x2_t product;
  asm(".arch_extension aes\n\tpmull %0.1q, %1.1d, %2.1d" : "=w"(product) : "w"(vdupq_n_u64(a)), "w"(vdupq_n_u64(b)));
  return vgetq_lane_u64(product, 0);
}

bool HasInstructions() {
#if defined(__linux__)
  constexpr unsigned long kBoth = HWCAP_CRC32 | HWCAP_PMULL;
  return (getauxval(AT_HWCAP) & kBoth) == kBoth;
#else
  return true;  // every 64-bit Apple processor has them
#endif
}
#endif

// The instruction takes two or three cycles but one can start in each, so three streams of any length run in parallel
// and are joined at their end. Any length: records are short, and the remainder of a fixed length would run in one
// stream.
MONOLITH_CRC_TARGET inline uint32_t ThreeStreams(size_t words, uint32_t crc, const unsigned char* bytes) {
  const size_t stride = 8 * words;
  uint32_t second = 0;
  uint32_t third = 0;
  for (size_t at = 0; at < stride; at += 8) {
    crc = StepWord(crc, LoadWord(bytes + at));
    second = StepWord(second, LoadWord(bytes + stride + at));
    third = StepWord(third, LoadWord(bytes + 2 * stride + at));
  }
  return StepWord(0, Times(crc, kWordPowers[2 * words]) ^ Times(second, kWordPowers[words])) ^ third;
}

MONOLITH_CRC_TARGET uint32_t ExtendHardware(uint32_t crc, const void* data, size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  crc = ~crc;
  while (size >= 24 * kFewestWords) {
    const size_t words = std::min(size / 24, kMostWords);
    crc = ThreeStreams(words, crc, bytes);
    bytes += 24 * words;
    size -= 24 * words;
  }
  for (; size >= 8; bytes += 8, size -= 8) crc = StepWord(crc, LoadWord(bytes));
  for (; size > 0; ++bytes, --size) crc = StepByte(crc, *bytes);
  return ~crc;
}
#endif

using ExtendFunction = uint32_t (*)(uint32_t, const void*, size_t);

ExtendFunction ChooseExtend() {
#if defined(MONOLITH_CRC_HARDWARE)
  if (HasInstructions()) return &ExtendHardware;
#endif
  return &Crc32cExtendPortable;
}

ExtendFunction Extend() {
  static const ExtendFunction chosen = ChooseExtend();
  return chosen;
}

}  // namespace

uint32_t Crc32cExtend(uint32_t crc, const void* data, size_t size) { return Extend()(crc, data, size); }

bool Crc32cUsesHardware() { return Extend() != &Crc32cExtendPortable; }

uint32_t Crc32cExtendPortable(uint32_t crc, const void* data, size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; size >= 8; bytes += 8, size -= 8) {
    const uint64_t word = LoadWord(bytes) ^ crc;
    crc = 0;
    for (size_t place = 0; place < 8; ++place) crc ^= kSlicing[7 - place][(word >> (8 * place)) & 0xff];
  }
  for (; size > 0; ++bytes, --size) crc = (crc >> 8) ^ kSlicing[0][(crc ^ *bytes) & 0xff];
  return ~crc;
}

}  // namespace monolith
