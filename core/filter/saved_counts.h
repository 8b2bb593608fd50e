// Changes the saved bytes of a filter slice (docs/formats/filter.md) without the table they belong to. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace monolith {

// Returns the bytes without the counts of these ids; a hash is that of an Offer. Throws kDataLoss or kInvalidArgument
// for bytes that no filter of this version has saved.
std::string WithoutCounts(const std::string& bytes, std::span<const uint64_t> hashes);

}  // namespace monolith
