// A change of the bytes needs a new kVersion and a change of docs/formats/filter.md.
#include "filter/offer_counts.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "format/crc32c.h"

namespace monolith {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian and written without swapping");

constexpr uint32_t kMagic = 0x434f534du;  // "MSOC"
constexpr uint32_t kVersion = 1;

struct Header {
  uint32_t magic;
  uint32_t version;
  uint64_t count;
};

struct Entry {
  uint64_t hash;
  uint32_t offers;
  uint32_t zero;
};

struct Trailer {
  uint32_t crc;
  uint32_t zero;
};

template <typename T>
void Append(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

template <typename T>
T ReadAt(const std::string& bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

[[noreturn]] void Damaged(const std::string& reason) {
  throw Error(Code::kDataLoss, "probabilistic filter: the saved bytes are damaged: " + reason);
}

// Returns the header, after everything but the entries themselves was checked.
Header CheckedHeader(const std::string& bytes) {
  if (bytes.size() < sizeof(Header) + sizeof(Trailer) || ReadAt<uint32_t>(bytes, 0) != kMagic) {
    throw Error(Code::kInvalidArgument,
                "probabilistic filter: " + std::to_string(bytes.size()) +
                    " bytes of another filter were given; restore with the filter that was saved");
  }
  const auto header = ReadAt<Header>(bytes, 0);
  if (header.version != kVersion) {
    throw Error(Code::kInvalidArgument, "probabilistic filter: version " + std::to_string(header.version) +
                                            " is not known; this one reads version " + std::to_string(kVersion));
  }
  const size_t body = bytes.size() - sizeof(Trailer);
  if (ReadAt<Trailer>(bytes, body).crc != Crc32c(bytes.data(), body)) Damaged("their checksum does not match");
  const uint64_t entries = body - sizeof(Header);
  if (entries % sizeof(Entry) != 0 || header.count != entries / sizeof(Entry)) {
    Damaged("they declare " + std::to_string(header.count) + " ids in " + std::to_string(entries) + " bytes");
  }
  return header;
}

}  // namespace

uint32_t OfferCounts::Add(uint64_t hash) {
  uint32_t& offers = counts_[hash];
  return offers == std::numeric_limits<uint32_t>::max() ? offers : offers++;
}

size_t OfferCounts::MemoryBytes() const {
  constexpr size_t kNodeBytes = sizeof(void*) + sizeof(std::pair<const uint64_t, uint32_t>) + sizeof(size_t);
  return counts_.size() * kNodeBytes + counts_.bucket_count() * sizeof(void*);
}

std::string OfferCounts::Save() const {
  if (counts_.empty()) return {};
  std::vector<std::pair<uint64_t, uint32_t>> sorted(counts_.begin(), counts_.end());
  std::sort(sorted.begin(), sorted.end());
  std::string bytes;
  bytes.reserve(sizeof(Header) + sorted.size() * sizeof(Entry) + sizeof(Trailer));
  Append(bytes, Header{kMagic, kVersion, sorted.size()});
  for (const auto& [hash, offers] : sorted) Append(bytes, Entry{hash, offers, 0});
  Append(bytes, Trailer{Crc32c(bytes.data(), bytes.size()), 0});
  return bytes;
}

void OfferCounts::Load(const std::string& bytes) {
  std::unordered_map<uint64_t, uint32_t> counts;
  if (!bytes.empty()) {
    const Header header = CheckedHeader(bytes);
    counts.reserve(header.count);
    for (uint64_t i = 0; i < header.count; ++i) {
      const auto entry = ReadAt<Entry>(bytes, sizeof(Header) + i * sizeof(Entry));
      if (entry.offers == 0 || !counts.emplace(entry.hash, entry.offers).second) {
        Damaged("an id was offered 0 times or is listed twice");
      }
    }
  }
  counts_ = std::move(counts);
}

}  // namespace monolith
