// Encoding of the heads of frames: numbers and texts one after another, little-endian, without names. Pure values;
// thread-safe.
//
// A reader never reads beyond its bytes, and checks at the end that all were read: surplus or missing bytes mean that
// the two sides do not agree on the message, which is rejected.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/error.h"

namespace monolith::rpc {

class MessageWriter {
 public:
  template <typename T>
    requires std::is_arithmetic_v<T>
  MessageWriter& Number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  MessageWriter& Text(std::string_view text) {
    Number(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class MessageReader {
 public:
  explicit MessageReader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
    requires std::is_arithmetic_v<T>
  T Number() {
    T value;
    std::memcpy(&value, Next(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string Text() { return std::string(Next(Number<uint32_t>())); }
  void End() const {
    if (!rest_.empty())
      throw Error(Code::kDataLoss, "message: " + std::to_string(rest_.size()) + " bytes are left over");
  }

 private:
  std::string_view Next(size_t size) {
    if (size > rest_.size()) {
      throw Error(Code::kDataLoss, "message: " + std::to_string(size) + " bytes expected, " +
                                       std::to_string(rest_.size()) + " are left");
    }
    const std::string_view next = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return next;
  }

  std::string_view rest_;
};

}  // namespace monolith::rpc
