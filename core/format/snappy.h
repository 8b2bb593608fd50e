// Raw Snappy blocks, as used in the record files of ByteDance Monolith. Pure functions; thread-safe.
// The format: https://github.com/google/snappy/blob/main/format_description.txt
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace monolith {

// Appends the compressed block to *block: at most SnappyLargest(bytes.size()) bytes. REQUIRES: bytes.size() < 2^32.
void SnappyCompress(std::string_view bytes, std::string* block);
size_t SnappyLargest(size_t size);

// Appends the uncompressed bytes to *bytes and returns true; false, with *bytes unchanged, iff `block` is not a Snappy
// block. A block that claims more than its elements could ever yield is rejected before memory is allocated for it.
bool SnappyUncompress(std::string_view block, std::string* bytes);

}  // namespace monolith
