#include "base/city_hash.h"

#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>

static_assert(std::endian::native == std::endian::little, "the hash reads words as little-endian machines have them");

namespace monolith {
namespace {

constexpr uint64_t k0 = 0xc3a5c85c97cb3127ull;
constexpr uint64_t k1 = 0xb492b66fbe98f273ull;
constexpr uint64_t k2 = 0x9ae16a3b2f90404full;
constexpr uint64_t kMul = 0x9ddfea08eb382d69ull;

uint64_t Word(const char* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

uint64_t HalfWord(const char* at) {
  uint32_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

uint64_t Byte(const char* at) { return static_cast<uint8_t>(*at); }

uint64_t ShiftMix(uint64_t x) { return x ^ (x >> 47); }

uint64_t HashPair(uint64_t u, uint64_t v, uint64_t mul) {
  const uint64_t a = ShiftMix((u ^ v) * mul);
  return ShiftMix((v ^ a) * mul) * mul;
}

uint64_t HashUpTo16(const char* s, size_t length) {
  const uint64_t mul = k2 + length * 2;
  if (length >= 8) {
    const uint64_t a = Word(s) + k2;
    const uint64_t b = Word(s + length - 8);
    return HashPair(std::rotr(b, 37) * mul + a, (std::rotr(a, 25) + b) * mul, mul);
  }
  if (length >= 4) return HashPair(length + (HalfWord(s) << 3), HalfWord(s + length - 4), mul);
  if (length == 0) return k2;
  const uint64_t y = Byte(s) + (Byte(s + length / 2) << 8);
  const uint64_t z = length + (Byte(s + length - 1) << 2);
  return ShiftMix((y * k2) ^ (z * k0)) * k2;
}

uint64_t Hash17To32(const char* s, size_t length) {
  const uint64_t mul = k2 + length * 2;
  const uint64_t a = Word(s) * k1;
  const uint64_t b = Word(s + 8);
  const uint64_t c = Word(s + length - 8) * mul;
  const uint64_t d = Word(s + length - 16) * k2;
  return HashPair(std::rotr(a + b, 43) + std::rotr(c, 30) + d, a + std::rotr(b + k2, 18) + c, mul);
}

// std::byteswap requires C++23.
uint64_t Reversed(uint64_t x) { return __builtin_bswap64(x); }

uint64_t Hash33To64(const char* s, size_t length) {
  const uint64_t mul = k2 + length * 2;
  const uint64_t a = Word(s) * k2;
  const uint64_t b = Word(s + 8);
  const uint64_t c = Word(s + length - 24);
  const uint64_t d = Word(s + length - 32);
  const uint64_t e = Word(s + 16) * k2;
  const uint64_t f = Word(s + 24) * 9;
  const uint64_t g = Word(s + length - 8);
  const uint64_t h = Word(s + length - 16) * mul;
  const uint64_t u = std::rotr(a + g, 43) + (std::rotr(b, 30) + c) * 9;
  const uint64_t v = ((a + g) ^ d) + f + 1;
  const uint64_t w = Reversed((u + v) * mul) + h;
  const uint64_t x = std::rotr(e + f, 42) + c;
  const uint64_t y = (Reversed((v + w) * mul) + g) * mul;
  const uint64_t z = e + f + c;
  const uint64_t p = Reversed((x + z) * mul + y) + b;
  return ShiftMix((z + p) * mul + d + h) * mul + x;
}

struct Pair {
  uint64_t first;
  uint64_t second;
};

Pair WeakHash32(const char* s, uint64_t a, uint64_t b) {
  a += Word(s);
  b = std::rotr(b + a + Word(s + 24), 21);
  const uint64_t c = a;
  a += Word(s + 8) + Word(s + 16);
  b += std::rotr(a, 44);
  return {a + Word(s + 24), b + c};
}

uint64_t HashLong(const char* s, size_t length) {
  uint64_t x = Word(s + length - 40);
  uint64_t y = Word(s + length - 16) + Word(s + length - 56);
  uint64_t z = HashPair(Word(s + length - 48) + length, Word(s + length - 24), kMul);
  Pair v = WeakHash32(s + length - 64, length, z);
  Pair w = WeakHash32(s + length - 32, y + k1, x);
  x = x * k1 + Word(s);
  for (const char* end = s + ((length - 1) & ~size_t{63}); s != end; s += 64) {
    x = std::rotr(x + y + v.first + Word(s + 8), 37) * k1;
    y = std::rotr(y + v.second + Word(s + 48), 42) * k1;
    x ^= w.second;
    y += v.first + Word(s + 40);
    z = std::rotr(z + w.first, 33) * k1;
    v = WeakHash32(s, v.second * k1, x + w.first);
    w = WeakHash32(s + 32, z + w.second, y + Word(s + 16));
    std::swap(z, x);
  }
  return HashPair(HashPair(v.first, w.first, kMul) + ShiftMix(y) * k1 + z, HashPair(v.second, w.second, kMul) + x,
                  kMul);
}

}  // namespace

uint64_t CityHash64(std::string_view bytes) {
  if (bytes.size() <= 16) return HashUpTo16(bytes.data(), bytes.size());
  if (bytes.size() <= 32) return Hash17To32(bytes.data(), bytes.size());
  if (bytes.size() <= 64) return Hash33To64(bytes.data(), bytes.size());
  return HashLong(bytes.data(), bytes.size());
}

uint64_t CityHash64(std::string_view bytes, uint64_t seed) { return HashPair(CityHash64(bytes) - k2, seed, kMul); }

}  // namespace monolith
