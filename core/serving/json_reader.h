// Reads JSON (RFC 8259, UTF-8) piece by piece from a text in memory. Belongs to one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace monolith {

// A number of a document. Integers keep their 64 bits; everything else is the nearest double.
struct JsonNumber {
  bool is_whole = false;     // written without a fraction and an exponent, and within 64 bits
  bool is_unsigned = false;  // above the largest int64; `whole` has its bits
  bool is_large = false;     // written as an integer, beyond 64 bits
  int64_t whole = 0;
  double real = 0.0;
};

class JsonReader {
 public:
  // The text must outlive the reader. Containers nested deeper than `max_depth` are rejected.
  JsonReader(std::string_view text, int max_depth);

  // Returns the next character that is not white space; 0 at the end.
  char Peek();
  // Whether the next character is this one; if so, steps over it.
  bool Take(char expected);
  // Steps over this character. Throws Error(kInvalidArgument) if the next one is another.
  void Expect(char expected);
  // Returns the next string, unescaped; valid until the next call. Throws Error(kInvalidArgument).
  std::string_view ReadString();
  // Returns the text between the quotes of the next string, escapes included. Throws Error(kInvalidArgument).
  std::string_view ReadRawString();
  JsonNumber ReadNumber();
  // Reads "true", "false" or "null"; returns its first letter.
  char ReadLiteral();
  // Steps over a value of any kind.
  void SkipValue();
  // Counts the open containers.
  void Enter();
  void Leave() { --depth_; }
  // Rejects anything but white space after the document.
  void ExpectEnd();

  size_t position() const { return at_; }
  void Return(size_t position) { at_ = position; }

  [[noreturn]] void Fail(const std::string& what) const;

 private:
  void SkipSpace();
  std::string_view Unescape(size_t begin);
  void AppendEscape();
  uint32_t ReadHex();

  std::string_view text_;
  int max_depth_;
  int depth_ = 0;
  size_t at_ = 0;
  std::string unescaped_;
};

// Whether bytes are UTF-8 as Unicode defines it: no overlong form, no surrogate, nothing above U+10FFFF.
bool IsUtf8(std::string_view bytes);

}  // namespace monolith
