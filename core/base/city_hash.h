// CityHash64, version 1.1, of byte strings: the ids of texts rest on it, so it may never change. Test vectors:
// docs/formats/text_ids.md. A pure function of the bytes; the same on every machine that is little-endian.
#pragma once

#include <cstdint>
#include <string_view>

namespace monolith {

uint64_t CityHash64(std::string_view bytes);

// The same with a seed, as CityHash64WithSeed.
uint64_t CityHash64(std::string_view bytes, uint64_t seed);

}  // namespace monolith
