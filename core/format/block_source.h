// A source of row blocks, one after another: a cut, a delta, a test's list. Used by one thread at a time.
#pragma once

#include <string>

namespace monolith {

class BlockSource {
 public:
  virtual ~BlockSource() = default;
  // Writes the next block to *block, whose memory may be reused, and returns true; false at the end. Blocks come in
  // ascending bucket order; all blocks of a bucket are consecutive.
  virtual bool Next(std::string* block) = 0;
};

}  // namespace monolith
