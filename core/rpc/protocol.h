// The protocol of every conversation: a greeting first, then calls and their answers, any of which may be an error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace monolith::rpc {

// Kinds of frames; those from kFirstOwn on belong to the service.
inline constexpr uint16_t kError = 0;     // answer: code, text
inline constexpr uint16_t kGreeting = 1;  // call: token, then words for the service; answer: the service's reply
inline constexpr uint16_t kFirstOwn = 16;

// Limit for a peer that has not sent its greeting.
inline constexpr uint32_t kGreetingBytes = 64u << 10;

std::string EncodeError(Code code, std::string_view text);
// Throws kDataLoss if the bytes are no error.
Error DecodeError(std::string_view bytes);

struct Greeting {
  std::string token;
  std::string words;
};
std::string EncodeGreeting(const Greeting& greeting);
Greeting DecodeGreeting(std::string_view bytes);

// Takes the same time for any two tokens of one length.
bool IsSameToken(std::string_view one, std::string_view other);

}  // namespace monolith::rpc
