// CityHash64, version 1.1, of byte strings: the ids of texts depend on it, so it may never change. Test vectors:
// docs/formats/text_ids.md. A pure function of the bytes; the same on every little-endian machine.
#pragma once

#include <cstdint>
#include <string_view>

namespace monolith {

uint64_t CityHash64(std::string_view bytes);

// As above with a seed, as CityHash64WithSeed.
uint64_t CityHash64(std::string_view bytes, uint64_t seed);

}  // namespace monolith
