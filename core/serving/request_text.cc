#include "serving/request_text.h"

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/instruction_set.h"

namespace monolith {
namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint32_t kForeign = 1U << 31;

// By position of a letter among four: its six bits in their final position, or kForeign.
constexpr std::array<std::array<uint32_t, 256>, 4> kBits = [] {
  std::array<std::array<uint32_t, 256>, 4> bits{};
  for (size_t place = 0; place < 4; ++place) {
    bits[place].fill(kForeign);
    for (size_t i = 0; i < kAlphabet.size(); ++i) {
      bits[place][static_cast<uint8_t>(kAlphabet[i])] = static_cast<uint32_t>(i << (18 - 6 * place));
    }
  }
  return bits;
}();

uint32_t BitsOf(const uint8_t* four) {
  return kBits[0][four[0]] | kBits[1][four[1]] | kBits[2][four[2]] | kBits[3][four[3]];
}

static_assert(std::endian::native == std::endian::little, "four letters become a number in the order of their bytes");

constexpr size_t kBlockLetters = 64;  // decoded per step, by arithmetic that becomes vector code
constexpr size_t kBlockBytes = kBlockLetters / 4 * 3;

// Writes the six bits of each letter; returns whether all have some.
bool SextetsOf(const uint8_t* letters, uint8_t* sextets) {
  uint8_t foreign = 0;
  for (size_t i = 0; i < kBlockLetters; ++i) {
    const uint8_t letter = letters[i];
    const auto upper = static_cast<uint8_t>(letter - 'A');
    const auto lower = static_cast<uint8_t>(letter - 'a');
    const auto digit = static_cast<uint8_t>(letter - '0');
    uint8_t sextet = letter == '+' ? 62 : letter == '/' ? 63 : 0xFF;
    sextet = upper < 26 ? upper : sextet;
    sextet = lower < 26 ? static_cast<uint8_t>(lower + 26) : sextet;
    sextet = digit < 10 ? static_cast<uint8_t>(digit + 52) : sextet;
    sextets[i] = sextet;
    foreign |= sextet;
  }
  return foreign < 64;
}

// Writes three bytes for every four sextets, and one byte more after them.
void JoinSextets(const uint8_t* sextets, char* bytes) {
  for (size_t i = 0; i < kBlockLetters; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, sextets + i, sizeof eight);
    constexpr uint64_t kBytes = 0x00FF00FF00FF00FF, kPairs = 0x0000FFFF0000FFFF;
    const uint64_t pairs = ((eight & kBytes) << 6) | ((eight >> 8) & kBytes);
    const uint64_t fours = ((pairs & kPairs) << 12) | ((pairs >> 16) & kPairs);
    for (const auto four : {static_cast<uint32_t>(fours), static_cast<uint32_t>(fours >> 32)}) {
      const uint32_t ordered = __builtin_bswap32(four << 8);
      std::memcpy(bytes, &ordered, sizeof ordered);
      bytes += 3;
    }
  }
}

size_t PaddingOf(std::string_view text) {
  if (text.empty() || text.back() != '=') return 0;
  return text[text.size() - 2] == '=' ? 2 : 1;
}

constexpr int kVarint = 0, kFixed64 = 1, kSized = 2, kFixed32 = 5;
constexpr uint64_t kBatchSizeField = 3;

std::optional<uint64_t> ReadVarint(std::string_view& data) {
  uint64_t value = 0;
  for (size_t i = 0; i < data.size() && i < 10; ++i) {
    const auto byte = static_cast<uint8_t>(data[i]);
    value |= static_cast<uint64_t>(byte & 0x7F) << (7 * i);
    if (byte < 0x80) {
      data.remove_prefix(i + 1);
      return value;
    }
  }
  return std::nullopt;
}

bool Skip(std::string_view& data, uint64_t count) {
  if (count > data.size()) return false;
  data.remove_prefix(count);
  return true;
}

constexpr size_t kLongestFloat = 20;  // "-1.17549435e-38" and room for ".0" and a comma

bool AppendFloat(std::string& text, float value) {
  if (!std::isfinite(value)) return false;
  std::array<char, kLongestFloat> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  const std::string_view written(digits.data(), static_cast<size_t>(end - digits.data()));
  text.append(written);
  if (written.find_first_of(".e") == std::string_view::npos) text.append(".0");
  return true;
}

}  // namespace

std::optional<size_t> DecodedSize(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  return text.size() / 4 * 3 - PaddingOf(text);
}

bool DecodeBase64(std::string_view text, char* bytes) {
  const size_t padding = PaddingOf(text);
  const auto* from = reinterpret_cast<const uint8_t*>(text.data());
  auto* to = reinterpret_cast<uint8_t*>(bytes);
  uint32_t seen = 0;
  size_t left = text.size() / 4 - (padding > 0 ? 1 : 0);
  const bool is_plain = WithInstructions([&] {
    std::array<uint8_t, kBlockLetters> sextets;
    for (; left > kBlockLetters / 4; left -= kBlockLetters / 4, from += kBlockLetters, to += kBlockBytes) {
      if (!SextetsOf(from, sextets.data())) return false;
      JoinSextets(sextets.data(), reinterpret_cast<char*>(to));
    }
    return true;
  });
  if (!is_plain) return false;
  for (; left > 0; --left, from += 4, to += 3) {
    const uint32_t bits = BitsOf(from);
    seen |= bits;
    to[0] = static_cast<uint8_t>(bits >> 16);
    to[1] = static_cast<uint8_t>(bits >> 8);
    to[2] = static_cast<uint8_t>(bits);
  }
  if (padding > 0) {
    const std::array<uint8_t, 4> last = {from[0], from[1], padding == 2 ? uint8_t{'A'} : from[2], uint8_t{'A'}};
    const uint32_t bits = BitsOf(last.data());
    seen |= bits;
    to[0] = static_cast<uint8_t>(bits >> 16);
    if (padding == 1) to[1] = static_cast<uint8_t>(bits >> 8);
  }
  return (seen & kForeign) == 0;
}

std::optional<uint64_t> ExampleBatchSize(std::string_view encoded) {
  uint64_t size = 0;
  while (!encoded.empty()) {
    const auto tag = ReadVarint(encoded);
    if (!tag) return std::nullopt;
    const auto kind = static_cast<int>(*tag & 7);
    if (kind == kVarint) {
      const auto value = ReadVarint(encoded);
      if (!value) return std::nullopt;
      if (*tag >> 3 == kBatchSizeField) size = *value;
    } else if (kind == kSized) {
      const auto length = ReadVarint(encoded);
      if (!length || !Skip(encoded, *length)) return std::nullopt;
    } else if (kind == kFixed64 || kind == kFixed32) {
      if (!Skip(encoded, kind == kFixed64 ? 8 : 4)) return std::nullopt;
    } else {
      return std::nullopt;
    }
  }
  return size;
}

std::optional<std::string> JsonOfFloats(std::span<const float> values, size_t width) {
  std::string text = "[";
  text.reserve(values.size() * 12 + 2);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text.push_back(',');
    if (width > 0 && i % width == 0) text.push_back('[');
    if (!AppendFloat(text, values[i])) return std::nullopt;
    if (width > 0 && i % width == width - 1) text.push_back(']');
  }
  text.push_back(']');
  return text;
}

}  // namespace monolith
