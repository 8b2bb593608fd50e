// How the epochs of rows are renumbered when the epoch they count from moves up. A value.
//
// Order is kept: what was later is later or equal. Epochs up to the new base become 0, which stands for "before
// everything anyone asks for"; those after an open cut become at least 1, so that they stay apart from those in it.
#pragma once

#include <cstdint>

namespace monolith {

struct EpochShift {
  uint32_t down;                    // by how much epochs become smaller
  uint32_t cut_epoch = UINT32_MAX;  // of the open cut, before the shift

  uint32_t Of(uint32_t epoch) const {
    if (epoch > down) return epoch - down;
    return epoch > cut_epoch ? 1 : 0;
  }
};

}  // namespace monolith
