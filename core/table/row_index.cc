#include "table/row_index.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "base/error.h"

namespace monolith {
namespace {

// The load at which an index grows, and how much: both differ between siblings, so that they do not all grow in one batch.
// At a load of 0.9 about 6 % of the entries have overflowed their home line and cost a second line to find.
constexpr double kMinFullLoad = 0.86;
constexpr double kMaxFullLoad = 0.92;
constexpr double kSlowestGrowth = 1.17;
constexpr double kFastestGrowth = 1.33;
constexpr uint16_t kStickyPassed = 0xffff;  // saturated: searches go on past such a line for ever, which is slow but right

uint32_t EntriesAtFullLoad(uint32_t num_lines, double phase) {
  if (num_lines <= 2) return num_lines * kLineEntries;
  return static_cast<uint32_t>(num_lines * kLineEntries * (kMinFullLoad + (kMaxFullLoad - kMinFullLoad) * phase));
}

uint32_t RoundLines(uint64_t lines) {
  constexpr uint32_t kWhole = IndexShape::kSegmentLines;
  if (lines <= kWhole) return static_cast<uint32_t>(std::bit_ceil(std::max<uint64_t>(lines, 1)));
  return static_cast<uint32_t>((lines + kWhole - 1) / kWhole * kWhole);
}

uint32_t NumSegments(uint32_t num_lines) { return (num_lines + IndexShape::kSegmentLines - 1) / IndexShape::kSegmentLines; }

size_t SegmentBytes(uint32_t num_lines) { return std::min(num_lines, IndexShape::kSegmentLines) * sizeof(IndexLine); }

IndexLine** NewSegmentList(uint32_t num_segments) {
  auto** segments = static_cast<IndexLine**>(std::malloc(num_segments * sizeof(IndexLine*)));
  if (segments == nullptr) throw std::bad_alloc();
  return segments;
}

int FirstEmpty(const IndexLine& line) {
  const uint64_t empty = MatchTags(line, 0);
  return empty != 0 ? FirstMatch(empty) : -1;
}

}  // namespace

const IndexLine IndexHead::kEmptyLine{};

void IndexHead::SetShape(const IndexShape& shape) {
  const auto address = reinterpret_cast<uint64_t>(shape.segments);
  constexpr uint32_t kWhole = IndexShape::kSegmentLines;
  const uint32_t code = shape.num_lines <= kWhole ? shape.num_lines : shape.num_lines / kWhole + kCodeOffset;
  MONOLITH_CHECK((address & ~kAddress) == 0 && code < (1u << 16));
  shape_.store(address | uint64_t{code} << 48, std::memory_order_release);
}

RowIndex::~RowIndex() {
  if (head_ != nullptr) FreeSegmentLists();
}

void RowIndex::FreeSegmentLists() {
  std::free(const_cast<IndexLine**>(shape().segments));
  head_->SetShape({nullptr, 0});
  for (IndexLine* const* segments : retired_) std::free(const_cast<IndexLine**>(segments));
  retired_.clear();
}

RowIndex::Rebuild::Rebuild(uint32_t lines_wanted) : num_lines(lines_wanted) {
  thread_local std::vector<IndexLine> scratch;
  thread_local std::vector<uint8_t> counts;
  if (scratch.size() < num_lines) scratch.resize(num_lines);
  lines = scratch.data();
  std::memset(static_cast<void*>(lines), 0, num_lines * sizeof(IndexLine));
  counts.assign(num_lines, 0);
  used = counts.data();
}

void RowIndex::Rebuild::Insert(uint64_t hash, uint32_t row) {
  uint32_t at = IndexShape{nullptr, num_lines}.HomeOf(hash);
  for (; used[at] == kLineEntries; at = at + 1 == num_lines ? 0 : at + 1) {
    if (lines[at].passed != kStickyPassed) ++lines[at].passed;
  }
  const int entry = used[at]++;
  lines[at].rows[entry] = row;
  lines[at].tags[entry] = TagOf(hash);
}

uint32_t RowIndex::LinesFor(uint32_t entries, double phase) const {
  const uint32_t now = shape().num_lines;
  const double growth = kSlowestGrowth + (kFastestGrowth - kSlowestGrowth) * phase;
  const auto grown = static_cast<uint64_t>(now * growth);
  const auto needed = static_cast<uint64_t>(entries / (kLineEntries * kMinFullLoad)) + 1;
  return std::max(now, RoundLines(std::max(grown, needed)));
}

void RowIndex::Replace(const Rebuild& rebuild, double phase, BlockArena& arena) {
  const IndexShape old = shape();
  const uint32_t kept = old.num_lines / IndexShape::kSegmentLines;  // a segment that is not whole is replaced
  const uint32_t num_segments = NumSegments(rebuild.num_lines);
  const size_t bytes = SegmentBytes(rebuild.num_lines);
  IndexLine** grown = NewSegmentList(num_segments);
  for (uint32_t i = 0; i < num_segments; ++i) {
    grown[i] = i < kept ? old.segments[i] : reinterpret_cast<IndexLine*>(arena.Allocate(bytes));
    std::memcpy(static_cast<void*>(grown[i]), rebuild.lines + i * IndexShape::kSegmentLines, bytes);
  }
  limit_ = EntriesAtFullLoad(rebuild.num_lines, phase);
  head_->SetShape({grown, rebuild.num_lines});
  if (old.segments == nullptr) return;
  if (kept == 0) arena.Free(reinterpret_cast<std::byte*>(old.segments[0]), SegmentBytes(old.num_lines));
  retired_.push_back(old.segments);
}

void RowIndex::Insert(uint64_t hash, uint32_t row) {
  const IndexShape now = shape();
  for (uint32_t at = now.HomeOf(hash);; at = now.Next(at)) {
    IndexLine& line = *now.Line(at);
    const int entry = FirstEmpty(line);
    if (entry >= 0) {
      line.rows[entry] = row;
      line.tags[entry] = TagOf(hash);
      break;
    }
    if (line.passed != kStickyPassed) ++line.passed;
  }
  head_->SetSize(size() + 1);
}

void RowIndex::Erase(uint64_t hash, uint32_t row) {
  const IndexShape now = shape();
  const uint8_t tag = TagOf(hash);
  for (uint32_t at = now.HomeOf(hash), seen = 0; seen < now.num_lines; ++seen, at = now.Next(at)) {
    IndexLine& line = *now.Line(at);
    for (uint64_t matches = MatchTags(line, tag); matches != 0; matches &= matches - 1) {
      const int entry = FirstMatch(matches);
      if (line.rows[entry] != row) continue;
      line.tags[entry] = 0;
      for (uint32_t passed = now.HomeOf(hash); passed != at; passed = now.Next(passed)) {
        if (now.Line(passed)->passed != kStickyPassed) --now.Line(passed)->passed;
      }
      head_->SetSize(size() - 1);
      return;
    }
  }
  MONOLITH_CHECK(!"entry to erase exists");
}

void RowIndex::Clear(BlockArena& arena) {
  const IndexShape now = shape();
  for (uint32_t i = 0; i < NumSegments(now.num_lines); ++i) {
    arena.Free(reinterpret_cast<std::byte*>(now.segments[i]), SegmentBytes(now.num_lines));
  }
  FreeSegmentLists();
  head_->SetSize(0);
  limit_ = 0;
}

size_t RowIndex::MemoryBytes() const {
  const uint32_t num_lines = shape().num_lines;
  if (num_lines == 0) return 0;
  // Retired lists are shorter than the current one and shrink geometrically; each is counted as half of it.
  return num_lines * sizeof(IndexLine) + NumSegments(num_lines) * sizeof(IndexLine*) * (1 + retired_.size() / 2);
}

}  // namespace monolith
