// The input of a fuzz target, which is consumed from the front, and the checks of a target. A value type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/error.h"

namespace monolith {

// Aborts if a guarantee of the parser is violated; the fuzzer reports the input.
inline void Expect(bool holds) {
  if (!holds) __builtin_trap();
}

class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  // The next byte; 0 at the end.
  uint8_t Byte() {
    const uint8_t byte = rest_.empty() ? 0 : static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(rest_.empty() ? 0 : 1);
    return byte;
  }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

// Runs a call that may refuse its input by an Error with one of these codes; any other exception is a failure.
template <typename Call>
void MayRefuse(std::initializer_list<Code> codes, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    bool is_allowed = false;
    for (const Code code : codes) is_allowed = is_allowed || error.code() == code;
    Expect(is_allowed);
  }
}

}  // namespace monolith
