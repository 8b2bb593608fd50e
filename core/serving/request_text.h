// What a server reads and writes of the text of requests in bulk: base64, the size of a batch, numbers of an answer.
//
// All of it is plain functions; any thread may call them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace monolith {

// How many bytes a base64 text says, if it is one of the usual alphabet, padded to a multiple of four; its letters are
// looked at when it is decoded.
std::optional<size_t> DecodedSize(std::string_view text);

// Writes the bytes of a base64 text; whether it was one.
// REQUIRES: DecodedSize(text) is something, and `bytes` has room for it.
bool DecodeBase64(std::string_view text, char* bytes);

// `batch_size` of an encoded ExampleBatch, found without decoding it; nothing if the bytes are cut off or foreign.
std::optional<uint64_t> ExampleBatchSize(std::string_view encoded);

// Numbers as JSON, "[0.5,1.0]", each with as few digits as tell it from all other floats; lists of `width` numbers
// in a list where `width` is not 0. Nothing if one is not finite.
// REQUIRES: values.size() is a multiple of `width`.
std::optional<std::string> JsonOfFloats(std::span<const float> values, size_t width);

}  // namespace monolith
