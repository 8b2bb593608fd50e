// What stands around the payload of each record of a stream. Byte grammar: docs/formats/framings.md.
//
// A value; what it is made of is numbered here and nowhere else: the Python package takes the numbers from the
// extension.
#pragma once

#include <cstdint>

namespace monolith {

inline constexpr uint64_t kTfRecordHeadBytes = 12;  // u64 length, u32 masked checksum of it
inline constexpr uint64_t kTfRecordTailBytes = 4;   // u32 masked checksum of the payload

class Framing {
 public:
  // Do not change the numbers of existing parts: the values of the package's enum are made of them.
  enum Part : uint32_t {
    kTfRecord = 1,   // excludes all others
    kLagrangex = 2,  // excludes all others
    kKafkaDumpPrefix = 4,
    kSortId = 8,
    kKafkaDump = 16,
  };

  Framing() = default;  // the length alone
  // `parts` is a sum of parts. Throws Error(kInvalidArgument) for one that no framing has.
  explicit Framing(uint32_t parts);

  bool Has(Part part) const { return (parts_ & part) != 0; }
  // Bytes behind a payload.
  uint64_t tail_bytes() const { return Has(kTfRecord) ? kTfRecordTailBytes : 0; }

 private:
  uint32_t parts_ = 0;
};

}  // namespace monolith
