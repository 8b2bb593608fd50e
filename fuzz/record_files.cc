// Record files of ByteDance Monolith with EntryDump messages, plain and in Snappy blocks, and Snappy blocks alone.
// Input: the kind, then the bytes.
#include <vector>

#include "bytes_file.h"
#include "format/entry_dump.h"
#include "format/record_file.h"
#include "format/snappy.h"
#include "input.h"

namespace monolith {
namespace {

const EntryDumpCodec& Codec() {
  static const EntryDumpCodec codec({{2, "sgd", 0}, {3, "adagrad", 12}}, std::string(12, '\0'));
  return codec;
}

void ReadDump(std::string_view record) {
  int64_t key = 0;
  uint32_t time = 0;
  std::vector<std::byte> payload(Codec().payload_bytes());
  MayRefuse({Code::kInvalidArgument}, [&] {
    if (!Codec().Decode(record, &key, &time, payload.data())) return;
    std::string again;
    Codec().Encode(key, time, payload.data(), &again);
    int64_t same_key = 0;
    uint32_t same_time = 0;
    std::vector<std::byte> same(payload.size());
    Expect(Codec().Decode(again, &same_key, &same_time, same.data()));
    Expect(same_key == key && same_time == time && same == payload);
  });
}

void ReadRecords(std::string_view bytes, RecordCompression compression) {
  const BytesFile file(bytes);
  MayRefuse({Code::kDataLoss}, [&] {
    RecordReader reader(file.path(), compression);
    std::string_view record;
    while (reader.Next(&record)) ReadDump(record);
  });
}

void Uncompress(std::string_view block) {
  std::string bytes = "before";
  if (!SnappyUncompress(block, &bytes)) return Expect(bytes == "before");
  std::string packed, again;
  SnappyCompress(std::string_view(bytes).substr(6), &packed);
  Expect(packed.size() <= SnappyLargest(bytes.size() - 6));
  Expect(SnappyUncompress(packed, &again) && again == std::string_view(bytes).substr(6));
}

}  // namespace
}  // namespace monolith

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace monolith;
  Input input(data, size);
  switch (input.Byte() % 4) {
    case 0: ReadRecords(input.rest(), RecordCompression::kNone); break;
    case 1: ReadRecords(input.rest(), RecordCompression::kSnappy); break;
    case 2: ReadDump(input.rest()); break;
    default: Uncompress(input.rest());
  }
  return 0;
}
