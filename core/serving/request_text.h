// Conversions of request and response text in bulk: base64, the size of a batch, numbers of an answer.
//
// Plain functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace monolith {

// Returns the number of bytes of a base64 text, if it has the standard alphabet and is padded to a multiple of four;
// its letters are only checked by the decoder.
std::optional<size_t> DecodedSize(std::string_view text);

// Writes the bytes of a base64 text; returns whether it was valid. REQUIRES: DecodedSize(text) has a value, and `bytes`
// has room for it.
bool DecodeBase64(std::string_view text, char* bytes);

// Returns `batch_size` of an encoded ExampleBatch, found without decoding it; nothing if the bytes are truncated or
// invalid.
std::optional<uint64_t> ExampleBatchSize(std::string_view encoded);

// Returns numbers as JSON, "[0.5,1.0]", each with the fewest digits that identify the float; lists of `width` numbers
// in a list if `width` is not 0. Nothing if one is not finite. REQUIRES: values.size() is a multiple of `width`.
std::optional<std::string> JsonOfFloats(std::span<const float> values, size_t width);

}  // namespace monolith
