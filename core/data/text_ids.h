// Ids of texts: a 64-bit hash of the column's name and the text's bytes, for texts that lie end to end as in Arrow.
// Pure functions: they own nothing, keep nothing, and are thread-safe; many texts are divided among the threads of the
// pool. The rule may never change, since trained rows are found by it: docs/formats/text_ids.md.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace monolith {

// Returns the id of one text.
int64_t TextId(std::string_view column, std::string_view text);

// Returns the ids of offsets.size() - 1 texts: text i is bytes[offsets[i] .. offsets[i + 1]). Throws
// Error(kInvalidArgument) if offsets decrease or exceed the bytes.
std::vector<int64_t> TextIds(std::string_view column, std::string_view bytes, std::span<const int32_t> offsets);
std::vector<int64_t> TextIds(std::string_view column, std::string_view bytes, std::span<const int64_t> offsets);

}  // namespace monolith
