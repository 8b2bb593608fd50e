#include "data/framing.h"

#include <string>

#include "base/error.h"

namespace monolith {

Framing::Framing(uint32_t parts) : parts_(parts) {
  constexpr uint32_t kMixable = kKafkaDumpPrefix | kSortId | kKafkaDump;
  if (parts != kTfRecord && parts != kLagrangex && (parts & ~kMixable) != 0) {
    throw Error(Code::kInvalidArgument,
                "a framing must be tfrecord, lagrangex, or any of kafka dump prefix, sort id and kafka dump, got the "
                "parts " +
                    std::to_string(parts));
  }
}

}  // namespace monolith
