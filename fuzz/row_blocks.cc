// Row blocks, concatenated row blocks, and snapshot files made of them. Input: the kind, then the bytes. The target
// corrects checksums first, because a fuzzer cannot guess them.
#include <vector>

#include "bytes_file.h"
#include "format/crc32c.h"
#include "format/row_block.h"
#include "format/snapshot_file.h"
#include "input.h"

namespace monolith {
namespace {

constexpr size_t kHeaderBytes = 32, kFooterBytes = 48, kEntryBytes = 40;

void Put(std::string* bytes, size_t at, uint32_t number) { std::memcpy(bytes->data() + at, &number, 4); }

template <typename Number>
Number Get(const std::string& bytes, size_t at) {
  Number number;
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

uint64_t Walk(const RowBlockView& block) {
  uint64_t sum = 0;
  for (uint32_t row = 0; row < block.count(); ++row) {
    sum += static_cast<uint64_t>(block.key(row)) + block.time(row);
    for (uint32_t i = 0; i < block.header().payload_bytes_per_row; ++i)
      sum += std::to_integer<uint64_t>(block.payload(row)[i]);
  }
  for (const char byte : block.payload_bytes()) sum += static_cast<uint8_t>(byte);
  return sum;
}

void ReadBlock(std::string bytes, bool is_signed) {
  if (is_signed && bytes.size() >= 8) Put(&bytes, bytes.size() - 8, Crc32c(bytes.data(), bytes.size() - 8));
  MayRefuse({Code::kDataLoss}, [&] {
    const std::vector<char> exact(bytes.begin(), bytes.end());
    Walk(RowBlockView({exact.data(), exact.size()}));
  });
}

void ReadPacked(std::string bytes, bool is_signed) {
  MayRefuse({Code::kDataLoss}, [&] {
    const std::vector<int64_t> offsets = PackedBlockOffsets(bytes);
    for (size_t i = 0; is_signed && i + 1 < offsets.size(); ++i) {
      const size_t crc_at = static_cast<size_t>(offsets[i + 1]) - 8, begin = static_cast<size_t>(offsets[i]);
      Put(&bytes, crc_at, Crc32c(bytes.data() + begin, crc_at - begin));
    }
    const std::vector<char> exact(bytes.begin(), bytes.end());
    const std::vector<RowBlockView> blocks = RowBlockView::AllIn({exact.data(), exact.size()});
    Expect(blocks.size() + 1 == offsets.size());
    for (const RowBlockView& block : blocks) Walk(block);
  });
}

// The checksums of the blocks are unchanged, because the index contains them too.
void SignFile(std::string* file) {
  if (file->size() < kHeaderBytes + kFooterBytes) return;
  Put(file, 24, Crc32c(file->data(), 24));
  const size_t footer = file->size() - kFooterBytes;
  const auto index = Get<uint64_t>(*file, footer), entries = Get<uint64_t>(*file, footer + 8);
  if (index <= footer && entries <= (footer - index) / kEntryBytes)
    Put(file, footer + 32, Crc32c(file->data() + index, entries * kEntryBytes));
  Put(file, footer + 36, Crc32c(file->data() + footer, 36));
}

void ReadFile(std::string bytes, bool is_signed) {
  if (is_signed) SignFile(&bytes);
  SnapshotFileInfo info;
  info.bytes = bytes.size();
  if (bytes.size() >= kHeaderBytes + kFooterBytes) {
    info.snapshot_id = Get<uint64_t>(bytes, 8);
    info.begin = Get<uint32_t>(bytes, 16);
    info.end = Get<uint32_t>(bytes, 20);
    info.index_crc = Get<uint32_t>(bytes, bytes.size() - 16);
  }
  const BytesFile file(bytes);
  info.path = file.path();
  MayRefuse({Code::kDataLoss}, [&] {
    const SnapshotFile snapshot(info);
    TransferBuffer memory;
    for (size_t i = 0; i < snapshot.blocks().size(); ++i)
      MayRefuse({Code::kDataLoss}, [&] { Walk(snapshot.View(i, i, snapshot.Read(i, i + 1, &memory))); });
  });
}

}  // namespace
}  // namespace monolith

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace monolith;
  Input input(data, size);
  const uint8_t choice = input.Byte();
  const std::string bytes(input.rest());
  if (choice & 1) {
    ReadFile(bytes, (choice & 2) != 0);
  } else if (choice & 4) {
    ReadPacked(bytes, (choice & 2) != 0);
  } else {
    ReadBlock(bytes, (choice & 2) != 0);
  }
  return 0;
}
