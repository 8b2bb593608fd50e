// Bytes of a sliding filter's slice: docs/formats/filter.md. A change here needs a new kVersion and a change there.
#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>

#include "filter/sliding_hash_filter.h"
#include "format/crc32c.h"

namespace monolith {

namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian and written without swapping");

constexpr uint32_t kMagic = 0x4c46534du;  // "MSFL"
constexpr uint16_t kVersion = 1;

struct Header {
  uint32_t magic;
  uint16_t version;
  uint16_t split_num;
  uint32_t split_capacity;
  uint32_t num_cells;
  uint32_t head;
  uint32_t stored_splits;
  uint64_t head_increment;
  uint64_t failure_count;
};
static_assert(sizeof(Header) == 40);

struct SplitHeader {
  uint32_t index;
  uint32_t num_elements;
};

struct Trailer {
  uint32_t crc;
  uint32_t zero;
};

constexpr size_t RoundUpTo8(size_t size) { return (size + 7) & ~size_t{7}; }

size_t BitmapWords(uint32_t num_cells) { return (num_cells + 63) / 64; }

[[noreturn]] void Damaged(const std::string& reason) {
  throw Error(Code::kDataLoss, "sliding_hash filter: the saved bytes are damaged: " + reason);
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  std::string_view Take(size_t size) {
    if (size > bytes_.size() - offset_) Damaged("they end at " + std::to_string(bytes_.size()) + ", inside a split");
    offset_ += size;
    return bytes_.substr(offset_ - size, size);
  }
  template <typename T>
  T Read() {
    T value;
    std::memcpy(&value, Take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  bool done() const { return offset_ == bytes_.size(); }

 private:
  std::string_view bytes_;
  size_t offset_ = 0;
};

template <typename T>
void Append(std::string* bytes, const T& value) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

// Free cells cost one bit each: splits are at most five sixths full, so this is smaller than the cells themselves.
void AppendSplit(std::string* bytes, uint32_t index, const FilterSplit& split) {
  Append(bytes, SplitHeader{index, split.num_elements()});
  const std::span<const uint16_t> cells = split.cells();
  std::vector<uint64_t> bitmap(BitmapWords(static_cast<uint32_t>(cells.size())));
  std::vector<uint16_t> used;
  used.reserve(split.num_elements());
  for (size_t cell = 0; cell < cells.size(); ++cell) {
    if (cells[cell] == 0) continue;
    bitmap[cell / 64] |= uint64_t{1} << (cell % 64);
    used.push_back(cells[cell]);
  }
  bytes->append(reinterpret_cast<const char*>(bitmap.data()), bitmap.size() * sizeof(uint64_t));
  bytes->append(reinterpret_cast<const char*>(used.data()), used.size() * sizeof(uint16_t));
  bytes->resize(RoundUpTo8(bytes->size()));
}

std::vector<uint16_t> ReadCells(Reader* reader, uint32_t num_cells, uint32_t num_elements) {
  if (num_elements == 0 || num_elements > num_cells)
    Damaged("a split of " + std::to_string(num_elements) + " elements");
  const size_t words = BitmapWords(num_cells);
  const char* bitmap = reader->Take(words * sizeof(uint64_t)).data();
  const char* used = reader->Take(RoundUpTo8(num_elements * sizeof(uint16_t))).data();
  std::vector<uint16_t> cells(num_cells);
  uint32_t next = 0;
  for (size_t word = 0; word < words; ++word) {
    uint64_t bits;
    std::memcpy(&bits, bitmap + word * sizeof(uint64_t), sizeof(bits));
    for (; bits != 0; bits &= bits - 1, ++next) {
      const size_t cell = word * 64 + static_cast<size_t>(std::countr_zero(bits));
      if (cell >= num_cells || next >= num_elements) Damaged("the bitmap of a split does not fit its cells");
      std::memcpy(&cells[cell], used + next * sizeof(uint16_t), sizeof(uint16_t));
      if ((cells[cell] & FilterSplit::kMaxCount) == 0) Damaged("a cell in use counts nothing");
    }
  }
  if (next != num_elements) Damaged("the bitmap of a split does not fit its cells");
  return cells;
}

// Returns header and body (the bytes between header and trailer), checked as far as possible without the slice.
std::pair<Header, std::string_view> Open(std::string_view bytes) {
  if (bytes.size() < sizeof(Header) + sizeof(Trailer)) Damaged(std::to_string(bytes.size()) + " bytes are too few");
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(Header));
  if (header.magic != kMagic) Damaged("they do not begin with the mark of a sliding_hash filter");
  if (header.version != kVersion) {
    throw Error(Code::kInvalidArgument, "sliding_hash filter: saved in format version " +
                                            std::to_string(header.version) + ", this build reads version " +
                                            std::to_string(kVersion));
  }
  Trailer trailer;
  const std::string_view checked = bytes.substr(0, bytes.size() - sizeof(Trailer));
  std::memcpy(&trailer, bytes.data() + checked.size(), sizeof(Trailer));
  if (trailer.crc != Crc32c(checked) || trailer.zero != 0) Damaged("the checksum does not match");
  return {header, checked.substr(sizeof(Header))};
}

}  // namespace

std::unique_ptr<SlidingHashFilterSlice> SlidingHashFilterSlice::LikeSaved(const std::string& bytes) {
  uint32_t magic = 0;
  std::memcpy(&magic, bytes.data(), std::min(bytes.size(), sizeof(magic)));
  if (magic != kMagic) return nullptr;
  const Header header = Open(bytes).first;
  const uint64_t capacity = uint64_t{header.split_capacity} * (header.split_num - 1u);
  if (header.split_num < kMinSplits || header.split_num > kMaxSplits || capacity > (uint64_t{1} << 31)) {
    Damaged("no slice has " + std::to_string(header.split_num) + " splits of " + std::to_string(header.split_capacity));
  }
  return std::make_unique<SlidingHashFilterSlice>(capacity, header.split_num);
}

std::string SlidingHashFilterSlice::Save() const {
  uint32_t stored_splits = 0;
  for (const FilterSplit& split : splits_) stored_splits += split.num_elements() > 0 ? 1 : 0;
  if (stored_splits == 0 && ring_.head_increment == 0 && ring_.failure_count == 0) return {};
  const uint32_t num_cells = FilterSplitRule::NumCells(split_capacity_);
  std::string bytes;
  bytes.reserve(sizeof(Header) + sizeof(Trailer) + num_elements() * sizeof(uint16_t) +
                stored_splits * (sizeof(SplitHeader) + 8 + BitmapWords(num_cells) * sizeof(uint64_t)));
  Append(&bytes, Header{kMagic, kVersion, static_cast<uint16_t>(split_num()), split_capacity_, num_cells, ring_.head,
                        stored_splits, ring_.head_increment, ring_.failure_count});
  for (uint32_t index = 0; index < split_num(); ++index) {
    if (splits_[index].num_elements() > 0) AppendSplit(&bytes, index, splits_[index]);
  }
  Append(&bytes, Trailer{Crc32c(bytes), 0});
  return bytes;
}

void SlidingHashFilterSlice::Load(const std::string& bytes) {
  if (bytes.empty()) return Clear();
  const auto [header, body] = Open(bytes);
  const uint32_t num_cells = FilterSplitRule::NumCells(split_capacity_);
  if (header.split_num != split_num() || header.split_capacity != split_capacity_ || header.num_cells != num_cells) {
    const auto describe = [](uint32_t splits, uint32_t capacity) {
      return "split_num " + std::to_string(splits) + " and " + std::to_string(capacity) + " ids per split and bucket";
    };
    throw Error(Code::kInvalidArgument, "sliding_hash filter: saved with " +
                                            describe(header.split_num, header.split_capacity) + ", this table has " +
                                            describe(split_num(), split_capacity_) +
                                            "; restore with the capacity and split_num that were saved");
  }
  if (header.head >= header.split_num || header.head_increment % header.split_num != header.head) {
    Damaged("the head cannot be at split " + std::to_string(header.head));
  }
  std::vector<FilterSplit> splits(split_num(), FilterSplit(split_capacity_));
  Reader reader(body);
  uint32_t first_allowed = 0;
  for (uint32_t stored = 0; stored < header.stored_splits; ++stored) {
    const SplitHeader split = reader.Read<SplitHeader>();
    if (split.index < first_allowed || split.index >= split_num()) Damaged("the splits are not in order");
    first_allowed = split.index + 1;
    splits[split.index] = FilterSplit::FromCells(split_capacity_, ReadCells(&reader, num_cells, split.num_elements));
  }
  if (!reader.done()) Damaged("there are bytes after the last split");
  splits_ = std::move(splits);
  ring_ = {header.head, header.head_increment, header.failure_count};
}

}  // namespace monolith
