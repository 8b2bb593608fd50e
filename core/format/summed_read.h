// Reads a complete file into memory, with the checksums of its pieces: used to load dense weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace monolith {

// Fills `target` from the start of the file, with several threads, and returns the CRC-32C of each piece of
// `piece_bytes`; the last may be shorter. Bypasses the page cache if both the memory and the pieces lie on transfer
// units (format/file_io.h) and the bytes are not cached. Throws Error(kDataLoss) if the file ends early, kNotFound if
// it is missing.
std::vector<uint32_t> ReadSummed(const std::string& path, std::span<char> target, size_t piece_bytes, int threads);

}  // namespace monolith
