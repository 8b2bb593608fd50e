// Raw Snappy blocks, as the record files of the original hold them. Pure functions, callable from any thread.
// The format: https://github.com/google/snappy/blob/main/format_description.txt
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace monolith {

// Appends the block to *block: at most SnappyLargest(bytes.size()) bytes. REQUIRES: bytes.size() < 2^32.
void SnappyCompress(std::string_view bytes, std::string* block);
size_t SnappyLargest(size_t size);

// Appends what the block holds to *bytes and returns true; false, with *bytes as it was, iff it is not a Snappy block.
// A block that claims more than its elements could ever yield is refused before memory is taken for it.
bool SnappyUncompress(std::string_view block, std::string* bytes);

}  // namespace monolith
