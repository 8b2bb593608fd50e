// The framing of the records of a stream: the bytes around each payload. Byte grammar: docs/formats/framings.md.
//
// A value. The numbers of its parts are defined here only: the Python package takes them from the extension.
#pragma once

#include <cstdint>

namespace monolith {

inline constexpr uint64_t kTfRecordHeadBytes = 12;  // u64 length, u32 masked checksum of it
inline constexpr uint64_t kTfRecordTailBytes = 4;   // u32 masked checksum of the payload

class Framing {
 public:
  // Do not change the numbers of existing parts: the values of the package's enum consist of them.
  enum Part : uint32_t {
    kTfRecord = 1,   // excludes all others
    kLagrangex = 2,  // excludes all others
    kKafkaDumpPrefix = 4,
    kSortId = 8,
    kKafkaDump = 16,
  };

  Framing() = default;  // the length alone
  // `parts` is a sum of parts. Throws Error(kInvalidArgument) for an invalid sum.
  explicit Framing(uint32_t parts);

  bool Has(Part part) const { return (parts_ & part) != 0; }
  // Number of bytes after a payload.
  uint64_t tail_bytes() const { return Has(kTfRecord) ? kTfRecordTailBytes : 0; }

 private:
  uint32_t parts_ = 0;
};

}  // namespace monolith
