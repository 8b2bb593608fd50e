#include "format/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
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

// A crc register after `Bytes` more zero bytes, as four table lookups: what joins streams computed side by side.
template <size_t Bytes>
struct ZeroShift {
  std::array<ByteTable, 4> tables{};

  constexpr ZeroShift() {
    // Column i of the shift matrix: the register with only bit i set, after Bytes zero bytes. Zero bytes one at a time
    // would cost 32 * Bytes steps at compile time, so the one-bit matrix is squared log2(8 * Bytes) times.
    static_assert((Bytes & (Bytes - 1)) == 0);
    std::array<uint32_t, 32> matrix{};
    matrix[0] = kPolynomial;
    for (uint32_t bit = 1; bit < 32; ++bit) matrix[bit] = 1u << (bit - 1);
    for (size_t bits = 1; bits < 8 * Bytes; bits *= 2) {
      std::array<uint32_t, 32> squared{};
      for (uint32_t bit = 0; bit < 32; ++bit) squared[bit] = Times(matrix, matrix[bit]);
      matrix = squared;
    }
    for (uint32_t byte = 0; byte < 256; ++byte) {
      for (uint32_t place = 0; place < 4; ++place) tables[place][byte] = Times(matrix, byte << (8 * place));
    }
  }

  static constexpr uint32_t Times(const std::array<uint32_t, 32>& matrix, uint32_t vector) {
    uint32_t sum = 0;
    for (uint32_t bit = 0; bit < 32; ++bit) {
      if ((vector >> bit) & 1) sum ^= matrix[bit];
    }
    return sum;
  }

  uint32_t operator()(uint32_t crc) const {
    return tables[0][crc & 0xff] ^ tables[1][(crc >> 8) & 0xff] ^ tables[2][(crc >> 16) & 0xff] ^ tables[3][crc >> 24];
  }
};

constexpr ZeroShift<4096> kShiftLong;
constexpr ZeroShift<256> kShiftShort;

#if defined(__x86_64__)
#define MONOLITH_CRC_TARGET __attribute__((target("sse4.2")))

MONOLITH_CRC_TARGET inline uint32_t StepWord(uint32_t crc, uint64_t word) {
  return static_cast<uint32_t>(_mm_crc32_u64(crc, word));
}
MONOLITH_CRC_TARGET inline uint32_t StepByte(uint32_t crc, unsigned char byte) { return _mm_crc32_u8(crc, byte); }

bool HasCrcInstruction() { return __builtin_cpu_supports("sse4.2") != 0; }
#else
#define MONOLITH_CRC_TARGET

// Assembly instead of <arm_acle.h>: gcc and clang spell the target attribute differently, and clang's header hides the
// intrinsics unless the whole file is compiled for the extension.
inline uint32_t StepWord(uint32_t crc, uint64_t word) {
  asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
  return crc;
}
inline uint32_t StepByte(uint32_t crc, unsigned char byte) {
  asm(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(static_cast<uint32_t>(byte)));
  return crc;
}

bool HasCrcInstruction() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#else
  return true;  // every 64-bit Apple processor has it
#endif
}
#endif

// The instruction takes about three cycles but one can start in each, so three streams run side by side.
template <size_t Stride>
MONOLITH_CRC_TARGET inline uint32_t ThreeStreams(uint32_t crc, const unsigned char* bytes,
                                                 const ZeroShift<Stride>& shift) {
  uint32_t second = 0;
  uint32_t third = 0;
  for (size_t at = 0; at < Stride; at += 8) {
    crc = StepWord(crc, LoadWord(bytes + at));
    second = StepWord(second, LoadWord(bytes + Stride + at));
    third = StepWord(third, LoadWord(bytes + 2 * Stride + at));
  }
  return shift(shift(crc) ^ second) ^ third;
}

MONOLITH_CRC_TARGET uint32_t ExtendHardware(uint32_t crc, const void* data, size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; size >= 3 * 4096; bytes += 3 * 4096, size -= 3 * 4096) crc = ThreeStreams<4096>(crc, bytes, kShiftLong);
  for (; size >= 3 * 256; bytes += 3 * 256, size -= 3 * 256) crc = ThreeStreams<256>(crc, bytes, kShiftShort);
  for (; size >= 8; bytes += 8, size -= 8) crc = StepWord(crc, LoadWord(bytes));
  for (; size > 0; ++bytes, --size) crc = StepByte(crc, *bytes);
  return ~crc;
}
#endif

using ExtendFunction = uint32_t (*)(uint32_t, const void*, size_t);

ExtendFunction ChooseExtend() {
#if defined(MONOLITH_CRC_HARDWARE)
  if (HasCrcInstruction()) return &ExtendHardware;
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
