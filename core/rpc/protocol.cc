#include "rpc/protocol.h"

#include "rpc/message.h"

namespace monolith::rpc {

std::string EncodeError(Code code, std::string_view text) {
  return MessageWriter().Number(static_cast<uint32_t>(code)).Text(text).Take();
}

Error DecodeError(std::string_view bytes) {
  MessageReader reader(bytes);
  const auto code = reader.Number<uint32_t>();
  const std::string text = reader.Text();
  reader.End();
  if (code > static_cast<uint32_t>(kLastCode)) throw Error(Code::kDataLoss, "message: an error of an unknown kind");
  return Error(static_cast<Code>(code), text);
}

std::string EncodeGreeting(const Greeting& greeting) {
  return MessageWriter().Text(greeting.token).Text(greeting.words).Take();
}

Greeting DecodeGreeting(std::string_view bytes) {
  MessageReader reader(bytes);
  Greeting greeting;
  greeting.token = reader.Text();
  greeting.words = reader.Text();
  reader.End();
  return greeting;
}

bool IsSameToken(std::string_view one, std::string_view other) {
  if (one.size() != other.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < one.size(); ++i) difference |= static_cast<unsigned char>(one[i] ^ other[i]);
  return difference == 0;
}

}  // namespace monolith::rpc
