// What every target begins with: the bytes that the fuzzer gives, taken apart from the front. A value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/error.h"

namespace monolith {

// Aborts, which the fuzzer reports with the input that led here: a promise of the parser is broken.
inline void Expect(bool holds) {
  if (!holds) __builtin_trap();
}

class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  // The next byte; 0 where there is none.
  uint8_t Byte() {
    const uint8_t byte = rest_.empty() ? 0 : static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(rest_.empty() ? 0 : 1);
    return byte;
  }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

// Runs what may refuse its input by an Error of one of these codes; any other exception is a fault.
template <typename Call>
void MayRefuse(std::initializer_list<Code> codes, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    bool is_known = false;
    for (const Code code : codes) is_known = is_known || error.code() == code;
    Expect(is_known);
  }
}

}  // namespace monolith
