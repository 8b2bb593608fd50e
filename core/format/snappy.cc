#include "format/snappy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

namespace monolith {
namespace {

// Matches reach back at most this far, so a two-byte offset is always enough.
constexpr size_t kFragment = size_t{1} << 16;
constexpr int kHashBits = 14;

uint32_t Load32(const char* at) {
  uint32_t word;
  std::memcpy(&word, at, 4);
  return word;
}

size_t HashOf(uint32_t word) { return (word * 0x1e35a7bdu) >> (32 - kHashBits); }

void PutLength(uint64_t length, std::string* block) {
  for (; length >= 0x80; length >>= 7) block->push_back(static_cast<char>(length | 0x80));
  block->push_back(static_cast<char>(length));
}

void PutLiteral(const char* bytes, size_t size, std::string* block) {
  if (size == 0) return;
  const size_t last = size - 1;
  if (last < 60) {
    block->push_back(static_cast<char>(last << 2));
  } else if (last < 256) {
    block->push_back(static_cast<char>(60 << 2));
    block->push_back(static_cast<char>(last));
  } else {
    block->push_back(static_cast<char>(61 << 2));
    block->push_back(static_cast<char>(last));
    block->push_back(static_cast<char>(last >> 8));
  }
  block->append(bytes, size);
}

void PutCopy(size_t offset, size_t size, std::string* block) {
  while (size > 0) {
    // Never leaves a rest below 4, which copies with an 11-bit offset cannot express.
    const size_t part = size > 64 ? (size < 68 ? 60 : 64) : size;
    if (part >= 4 && part <= 11 && offset < 2048) {
      block->push_back(static_cast<char>(1 | ((part - 4) << 2) | ((offset >> 8) << 5)));
      block->push_back(static_cast<char>(offset));
    } else {
      block->push_back(static_cast<char>(2 | ((part - 1) << 2)));
      block->push_back(static_cast<char>(offset));
      block->push_back(static_cast<char>(offset >> 8));
    }
    size -= part;
  }
}

size_t MatchLength(const char* earlier, const char* here, const char* end) {
  const char* start = here;
  while (here < end && *here == *earlier) ++here, ++earlier;
  return static_cast<size_t>(here - start);
}

// Greedy search for the last position with the same four bytes; steps grow while nothing matches.
void CompressFragment(const char* begin, const char* end, std::string* block) {
  std::array<uint16_t, size_t{1} << kHashBits> last_seen{};
  const char* literal = begin;
  const char* at = begin + 1;
  uint32_t misses = 32;
  while (end - at >= 8) {
    const uint32_t word = Load32(at);
    uint16_t& seen = last_seen[HashOf(word)];
    const char* earlier = begin + seen;
    seen = static_cast<uint16_t>(at - begin);
    if (Load32(earlier) != word) {
      at += misses++ >> 5;
      continue;
    }
    const size_t length = 4 + MatchLength(earlier + 4, at + 4, end);
    PutLiteral(literal, static_cast<size_t>(at - literal), block);
    PutCopy(static_cast<size_t>(at - earlier), length, block);
    at += length;
    literal = at;
    misses = 32;
  }
  PutLiteral(literal, static_cast<size_t>(end - literal), block);
}

bool GetLength(const char** at, const char* end, uint64_t* length) {
  *length = 0;
  for (int shift = 0; shift <= 28 && *at < end; shift += 7) {
    const auto byte = static_cast<unsigned char>(*(*at)++);
    *length |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return *length <= 0xffffffffu;
  }
  return false;
}

uint32_t LoadLittle(const char* at, size_t bytes) {
  uint32_t word = 0;
  std::memcpy(&word, at, bytes);
  return word;
}

// Read and write position inside one block.
struct Decoder {
  const char* in;
  const char* in_end;
  char* out;
  const char* out_begin;
  char* out_end;

  bool Literal(unsigned char tag) {
    size_t size = tag >> 2;
    if (size >= 60) {
      const size_t extra = size - 59;
      if (static_cast<size_t>(in_end - in) < extra) return false;
      size = LoadLittle(in, extra);
      in += extra;
    }
    ++size;
    if (static_cast<size_t>(in_end - in) < size || static_cast<size_t>(out_end - out) < size) return false;
    std::memcpy(out, in, size);
    in += size;
    out += size;
    return true;
  }

  bool Copy(unsigned char tag) {
    const size_t extra = (tag & 3) == 1 ? 1 : (tag & 3) == 2 ? 2 : 4;
    if (static_cast<size_t>(in_end - in) < extra) return false;
    size_t offset = LoadLittle(in, extra);
    size_t size = (tag >> 2) + 1;
    if (extra == 1) {
      offset |= static_cast<size_t>(tag >> 5) << 8;
      size = 4 + ((tag >> 2) & 7);
    }
    in += extra;
    if (offset == 0 || offset > static_cast<size_t>(out - out_begin)) return false;
    if (static_cast<size_t>(out_end - out) < size) return false;
    if (offset >= size) {
      std::memcpy(out, out - offset, size);
      out += size;
    } else {
      for (const char* from = out - offset; size > 0; --size) *out++ = *from++;  // overlapping: repeats a pattern
    }
    return true;
  }
};

}  // namespace

size_t SnappyLargest(size_t size) { return 32 + size + size / 6; }

void SnappyCompress(std::string_view bytes, std::string* block) {
  PutLength(bytes.size(), block);
  for (size_t at = 0; at < bytes.size(); at += kFragment) {
    const std::string_view fragment = bytes.substr(at, kFragment);
    CompressFragment(fragment.data(), fragment.data() + fragment.size(), block);
  }
}

bool SnappyUncompress(std::string_view block, std::string* bytes) {
  const char* at = block.data();
  const char* end = at + block.size();
  uint64_t length;
  if (!GetLength(&at, end, &length)) return false;
  // The densest element is a copy: 3 bytes for 64.
  if (length > 22 * static_cast<uint64_t>(end - at)) return false;
  const size_t before = bytes->size();
  bytes->resize(before + length);
  char* begin = bytes->data() + before;
  Decoder decoder{at, end, begin, begin, begin + length};
  bool good = true;
  while (good && decoder.in < end) {
    const auto tag = static_cast<unsigned char>(*decoder.in++);
    good = (tag & 3) == 0 ? decoder.Literal(tag) : decoder.Copy(tag);
  }
  if (good && decoder.out == decoder.out_end) return true;
  bytes->resize(before);
  return false;
}

}  // namespace monolith
