// How the epochs of rows are renumbered when the epoch from which they are counted advances. A value.
//
// Order is kept: a later epoch stays later or becomes equal. Epochs up to the new base become 0, which stands for
// "before every epoch that can be requested"; those after an open cut become at least 1, so that they stay apart from
// those in the cut.
#pragma once

#include <cstdint>

namespace monolith {

struct EpochShift {
  uint32_t down;                    // amount by which epochs decrease
  uint32_t cut_epoch = UINT32_MAX;  // of the open cut, before the shift

  uint32_t Of(uint32_t epoch) const {
    if (epoch > down) return epoch - down;
    return epoch > cut_epoch ? 1 : 0;
  }
};

}  // namespace monolith
