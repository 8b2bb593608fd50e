#include "serving/json_reader.h"

#include <charconv>
#include <cstdlib>
#include <limits>
#include <system_error>

#include "base/error.h"

namespace monolith {
namespace {

constexpr size_t kLongestNumber = 1024;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

constexpr size_t kBlock = 64;  // letters checked per step
constexpr size_t kLongString = 32;

bool IsDigit(char letter) { return letter >= '0' && letter <= '9'; }

// Returns the position of the first block with a quote, a backslash or a control character. ORs the letters before it
// to `seen`.
size_t SkipPlainBlocks(std::string_view text, size_t at, uint8_t& seen) {
  for (; at + kBlock <= text.size(); at += kBlock) {
    uint8_t letters = 0;
    uint8_t is_special = 0;
    for (size_t i = 0; i < kBlock; ++i) {  // without a branch, so that it becomes vector code
      const auto letter = static_cast<uint8_t>(text[at + i]);
      letters |= letter;
      is_special |= static_cast<uint8_t>((letter == '"') | (letter == '\\') | (letter < 0x20));
    }
    if (is_special != 0) break;
    seen |= letters;
  }
  return at;
}

void AppendUtf8(std::string& text, uint32_t point) {
  if (point < 0x80) {
    text.push_back(static_cast<char>(point));
    return;
  }
  if (point < 0x800) {
    text.push_back(static_cast<char>(0xC0 | (point >> 6)));
  } else {
    if (point < 0x10000) {
      text.push_back(static_cast<char>(0xE0 | (point >> 12)));
    } else {
      text.push_back(static_cast<char>(0xF0 | (point >> 18)));
      text.push_back(static_cast<char>(0x80 | ((point >> 12) & 0x3F)));
    }
    text.push_back(static_cast<char>(0x80 | ((point >> 6) & 0x3F)));
  }
  text.push_back(static_cast<char>(0x80 | (point & 0x3F)));
}

double RealOf(std::string_view digits) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc()) return value;
  return std::strtod(std::string(digits).c_str(), nullptr);  // beyond the range: an infinity or a zero
}

JsonNumber NumberOf(std::string_view text, bool is_whole) {
  JsonNumber number;
  const char* const end = text.data() + text.size();
  if (is_whole) {
    number.is_whole = std::from_chars(text.data(), end, number.whole).ec == std::errc();
    if (uint64_t bits = 0; !number.is_whole && std::from_chars(text.data(), end, bits).ec == std::errc()) {
      number.is_whole = number.is_unsigned = true;
      number.whole = static_cast<int64_t>(bits);
      number.real = static_cast<double>(bits);
      return number;
    }
    number.is_large = !number.is_whole;
  }
  number.real = number.is_whole ? static_cast<double>(number.whole) : RealOf(text);
  return number;
}

// Bytes of a character by its first byte; 0: invalid as a first byte.
size_t CharacterBytes(uint8_t first) {
  if (first < 0x80) return 1;
  if (first < 0xC2) return 0;
  if (first < 0xE0) return 2;
  if (first < 0xF0) return 3;
  return first < 0xF5 ? 4 : 0;
}

}  // namespace

bool IsUtf8(std::string_view bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const auto first = static_cast<uint8_t>(bytes[at]);
    const size_t size = CharacterBytes(first);
    if (size == 0 || at + size > bytes.size()) return false;
    for (size_t i = 1; i < size; ++i) {
      if ((static_cast<uint8_t>(bytes[at + i]) & 0xC0) != 0x80) return false;
    }
    const auto second = size > 1 ? static_cast<uint8_t>(bytes[at + 1]) : uint8_t{0};
    if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second >= 0xA0)) return false;
    if ((first == 0xF0 && second < 0x90) || (first == 0xF4 && second >= 0x90)) return false;
    at += size;
  }
  return true;
}

JsonReader::JsonReader(std::string_view text, int max_depth) : text_(text), max_depth_(max_depth) {
  if (text_.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
}

void JsonReader::Fail(const std::string& what) const {
  throw Error(Code::kInvalidArgument, "the body must be JSON: " + what + " at byte " + std::to_string(at_));
}

void JsonReader::SkipSpace() {
  while (at_ < text_.size()) {
    const char letter = text_[at_];
    if (letter != ' ' && letter != '\n' && letter != '\r' && letter != '\t') return;
    ++at_;
  }
}

char JsonReader::Peek() {
  SkipSpace();
  return at_ < text_.size() ? text_[at_] : '\0';
}

bool JsonReader::Take(char expected) {
  if (Peek() != expected || at_ >= text_.size()) return false;
  ++at_;
  return true;
}

void JsonReader::Expect(char expected) {
  if (!Take(expected)) Fail(std::string("expected '") + expected + "'");
}

void JsonReader::ExpectEnd() {
  SkipSpace();
  if (at_ < text_.size()) Fail("expected nothing more");
}

void JsonReader::Enter() {
  if (++depth_ > max_depth_) {
    throw Error(Code::kInvalidArgument, "the body is JSON nested deeper than " + std::to_string(max_depth_));
  }
}

std::string_view JsonReader::ReadRawString() {
  Expect('"');
  const size_t begin = at_;
  uint8_t seen = 0;
  for (; at_ < text_.size(); ++at_) {
    const auto letter = static_cast<uint8_t>(text_[at_]);
    if (letter == '"') return text_.substr(begin, at_++ - begin);
    if (letter == '\\') ++at_;
    if (letter < 0x20) Fail("a control character in a string");
    if (at_ - begin == kLongString) at_ = SkipPlainBlocks(text_, at_ + 1, seen) - 1;
  }
  Fail("a string that does not end");
}

std::string_view JsonReader::ReadString() {
  Expect('"');
  const size_t begin = at_;
  uint8_t seen = 0;
  for (; at_ < text_.size(); ++at_) {
    const auto letter = static_cast<uint8_t>(text_[at_]);
    if (letter == '"') {
      const std::string_view found = text_.substr(begin, at_ - begin);
      if (seen >= 0x80 && !IsUtf8(found)) Fail("a string that is no UTF-8");
      ++at_;
      return found;
    }
    if (letter == '\\') return Unescape(begin);
    if (letter < 0x20) Fail("a control character in a string");
    seen |= letter;
    if (at_ - begin == kLongString) at_ = SkipPlainBlocks(text_, at_ + 1, seen) - 1;
  }
  Fail("a string that does not end");
}

std::string_view JsonReader::Unescape(size_t begin) {
  unescaped_.assign(text_.substr(begin, at_ - begin));
  while (at_ < text_.size()) {
    const char letter = text_[at_++];
    if (letter == '"') {
      if (!IsUtf8(unescaped_)) Fail("a string that is no UTF-8");
      return unescaped_;
    }
    if (static_cast<uint8_t>(letter) < 0x20) Fail("a control character in a string");
    if (letter == '\\') {
      AppendEscape();
    } else {
      unescaped_.push_back(letter);
    }
  }
  Fail("a string that does not end");
}

void JsonReader::AppendEscape() {
  constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
  const char letter = at_ < text_.size() ? text_[at_++] : '\0';
  if (const size_t found = kLetters.find(letter); found != std::string_view::npos) {
    unescaped_.push_back(kMeanings[found]);
    return;
  }
  if (letter != 'u') Fail("an unknown escape");
  uint32_t point = ReadHex();
  if (point >= 0xD800 && point < 0xDC00 && text_.substr(at_, 2) == "\\u") {
    at_ += 2;
    const uint32_t low = ReadHex();
    if (low < 0xDC00 || low > 0xDFFF) Fail("half of a surrogate pair");
    point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
  }
  if (point >= 0xD800 && point <= 0xDFFF) Fail("half of a surrogate pair");
  AppendUtf8(unescaped_, point);
}

uint32_t JsonReader::ReadHex() {
  const std::string_view digits = text_.substr(at_, 4);
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (error != std::errc() || digits.size() != 4 || end != digits.data() + 4) Fail("expected four hexadecimal digits");
  at_ += 4;
  return value;
}

JsonNumber JsonReader::ReadNumber() {
  SkipSpace();
  const size_t begin = at_;
  const auto digits = [&] {
    const size_t from = at_;
    while (at_ < text_.size() && IsDigit(text_[at_])) ++at_;
    if (at_ == from) Fail("expected a value, and JSON has neither NaN nor Infinity,");
  };
  const auto is_next = [&](char first, char second) {
    return at_ < text_.size() && (text_[at_] == first || text_[at_] == second);
  };
  if (is_next('-', '-')) ++at_;
  const size_t first_digit = at_;
  if (is_next('0', '0')) {
    ++at_;
  } else {
    digits();
  }
  bool is_whole = true;
  if (is_next('.', '.')) {
    ++at_, is_whole = false;
    digits();
  }
  if (is_next('e', 'E')) {
    ++at_, is_whole = false;
    if (is_next('+', '-')) ++at_;
    digits();
  }
  if (is_whole && at_ - first_digit <= std::numeric_limits<int64_t>::digits10) {  // nearly all: they fit in any case
    int64_t value = 0;
    for (size_t i = first_digit; i < at_; ++i) value = value * 10 + (text_[i] - '0');
    JsonNumber number;
    number.is_whole = true;
    number.whole = first_digit > begin ? -value : value;
    number.real = static_cast<double>(number.whole);
    return number;
  }
  const std::string_view text = text_.substr(begin, at_ - begin);
  if (text.size() > kLongestNumber) Fail("a number of more than " + std::to_string(kLongestNumber) + " characters");
  return NumberOf(text, is_whole);
}

char JsonReader::ReadLiteral() {
  SkipSpace();
  for (const std::string_view literal : {"true", "false", "null"}) {
    if (text_.substr(at_, literal.size()) != literal) continue;
    at_ += literal.size();
    return literal.front();
  }
  Fail("expected a value");
}

void JsonReader::SkipValue() {
  const char first = Peek();
  if (first == '"') {
    ReadRawString();
  } else if (first == '[' || first == '{') {
    const char close = first == '[' ? ']' : '}';
    Expect(first);
    Enter();
    if (!Take(close)) {
      do {
        if (first == '{') {
          ReadRawString();
          Expect(':');
        }
        SkipValue();
      } while (Take(','));
      Expect(close);
    }
    Leave();
  } else if (first == '-' || IsDigit(first)) {
    ReadNumber();
  } else {
    ReadLiteral();
  }
}

}  // namespace monolith
