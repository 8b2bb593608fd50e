// Saved admission filters. Input: one byte, odd to put the checksum right, which no fuzzer guesses; then what a filter
// saved. What is accepted must be whole: it saves what it loaded, and counts on.
#include "filter/sliding_hash_filter.h"
#include "format/crc32c.h"
#include "input.h"

namespace monolith {
namespace {

// As many splits as the bytes say, so that they fit; five where they say nothing that a filter may have.
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
