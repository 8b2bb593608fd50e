// Saved admission filters. Input: one byte, then the bytes of a saved filter; if the first byte is odd, the target
// corrects the checksum, which a fuzzer cannot guess. An accepted filter must be intact: it saves the bytes that it
// loaded, and continues to count.
#include "filter/sliding_hash_filter.h"
#include "format/crc32c.h"
#include "input.h"

namespace monolith {
namespace {

// The number of splits in the bytes, so that they match the filter; the minimum if that number is not valid.
uint32_t NumSplits(const std::string& bytes) {
  uint16_t number = 0;
  if (bytes.size() >= 8) std::memcpy(&number, bytes.data() + 6, 2);
  return number >= SlidingHashFilterSlice::kMinSplits && number <= 50 ? number : SlidingHashFilterSlice::kMinSplits;
}

}  // namespace
}  // namespace monolith

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace monolith;
  Input input(data, size);
  const bool is_signed = (input.Byte() & 1) != 0;
  std::string bytes(input.rest());
  if (is_signed && bytes.size() >= 8) {
    const uint32_t crc = Crc32c(bytes.data(), bytes.size() - 8);
    std::memcpy(bytes.data() + bytes.size() - 8, &crc, 4);
  }
  SlidingHashFilterSlice slice(300, NumSplits(bytes)), again(300, NumSplits(bytes));
  MayRefuse({Code::kDataLoss, Code::kInvalidArgument, Code::kFailedPrecondition}, [&] {
    slice.Load(bytes);
    again.Load(slice.Save());
    Expect(again.Save() == slice.Save());
    for (uint64_t hash = 1; hash < 400; ++hash) slice.Add(hash * 0x9e3779b97f4a7c15u, 1);
  });
  return 0;
}
