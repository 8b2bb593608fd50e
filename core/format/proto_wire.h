// The wire format of protocol buffer messages, as far as ByteDance Monolith's messages use it: groups are rejected.
// Values; one thread at a time.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace monolith {

enum class WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

inline constexpr uint32_t TagOf(uint32_t field, WireType type) { return (field << 3) | static_cast<uint32_t>(type); }

// Iterates over the fields of one message.
class WireReader {
 public:
  explicit WireReader(std::string_view message) : at_(message.data()), end_(message.data() + message.size()) {}

  // Steps to the next field; false at the end or if the bytes are no message, which ok() distinguishes.
  bool Next() {
    if (at_ == end_) return false;
    uint64_t tag;
    if (!Varint(&tag) || tag > 0xffffffffu || (tag >> 3) == 0) return Fail();
    tag_ = static_cast<uint32_t>(tag);
    switch (tag_ & 7) {
      case 0: return Varint(&number_) || Fail();
      case 1: return Fixed(8) || Fail();
      case 2: return Bytes() || Fail();
      case 5: return Fixed(4) || Fail();
      default: return Fail();
    }
  }

  bool ok() const { return ok_; }
  const char* position() const { return at_; }  // after the current field
  uint32_t tag() const { return tag_; }
  uint64_t number() const { return number_; }        // of a varint or fixed field
  std::string_view bytes() const { return bytes_; }  // of a bytes field
  float real() const {                               // of a fixed32 field
    float value;
    const auto word = static_cast<uint32_t>(number_);
    std::memcpy(&value, &word, 4);
    return value;
  }

 private:
  bool Fail() {
    ok_ = false;
    return false;
  }

  bool Varint(uint64_t* value) {
    uint64_t sum = 0;
    for (int shift = 0; shift < 64 && at_ < end_; shift += 7) {
      const auto byte = static_cast<unsigned char>(*at_++);
      sum |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) {
        *value = sum;
        return true;
      }
    }
    return false;
  }

  bool Fixed(size_t size) {
    if (static_cast<size_t>(end_ - at_) < size) return false;
    number_ = 0;
    std::memcpy(&number_, at_, size);
    at_ += size;
    return true;
  }

  bool Bytes() {
    uint64_t size;
    if (!Varint(&size) || size > static_cast<uint64_t>(end_ - at_)) return false;
    bytes_ = std::string_view(at_, size);
    at_ += size;
    return true;
  }

  const char* at_;
  const char* end_;
  bool ok_ = true;
  uint32_t tag_ = 0;
  uint64_t number_ = 0;
  std::string_view bytes_;
};

inline size_t VarintBytes(uint64_t value) {
  size_t size = 1;
  for (; value >= 0x80; value >>= 7) ++size;
  return size;
}

inline void PutVarint(uint64_t value, std::string* to) {
  for (; value >= 0x80; value >>= 7) to->push_back(static_cast<char>(value | 0x80));
  to->push_back(static_cast<char>(value));
}

// Writes `count` unpacked float fields of one number. REQUIRES: field < 16, so that a tag is one byte.
inline void PutFloats(uint32_t field, const std::byte* floats, size_t count, std::string* to) {
  const size_t before = to->size();
  to->resize(before + 5 * count);
  char* at = to->data() + before;
  for (size_t i = 0; i < count; ++i, at += 5) {
    *at = static_cast<char>(TagOf(field, WireType::kFixed32));
    std::memcpy(at + 1, floats + 4 * i, 4);
  }
}

}  // namespace monolith
