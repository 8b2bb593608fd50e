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
  if (lines <= 32) return static_cast<uint32_t>(std::bit_ceil(std::max<uint64_t>(lines, 1)));
  return static_cast<uint32_t>((lines + 31) / 32 * 32);
}

uint32_t NumSegments(uint32_t num_lines) {
  return num_lines <= 32 ? static_cast<uint32_t>(std::bit_width(num_lines)) : 5 + num_lines / 32;
}

uint32_t SegmentLines(uint32_t segment) { return segment >= 6 ? 32 : (segment == 0 ? 1 : 1u << (segment - 1)); }

RowIndex::View* NewView(uint32_t num_lines) {
  const uint32_t segments = NumSegments(num_lines);
  const size_t bytes = sizeof(RowIndex::View) + (segments - 1) * sizeof(IndexLine*);
  auto* view = static_cast<RowIndex::View*>(std::malloc(bytes));
  if (view == nullptr) throw std::bad_alloc();
  view->num_lines = num_lines;
  view->num_segments = segments;
  return view;
}

int FirstEmpty(const IndexLine& line) {
  const TagMatches empty = MatchTags(line, 0);  // the lowest match is always a true one
  return empty.any() ? empty.first() : -1;
}

// Puts an entry into the first line with room from `home` on, over any way of getting at lines.
template <typename LineAt>
void InsertInto(uint32_t num_lines, uint32_t home, uint8_t tag, uint32_t row, LineAt&& line_at) {
  for (uint32_t at = home;;) {
    IndexLine& line = line_at(at);
    const int entry = FirstEmpty(line);
    if (entry >= 0) {
      line.rows[entry] = row;
      line.tags[entry] = tag;
      return;
    }
    if (line.passed != kStickyPassed) ++line.passed;
    at = at + 1 == num_lines ? 0 : at + 1;
  }
}

}  // namespace

RowIndex::~RowIndex() {
  std::free(view_.load(std::memory_order_relaxed));
  for (View* view : retired_) std::free(view);
}

RowIndex::Rebuild::Rebuild(uint32_t lines_wanted) : num_lines(lines_wanted) {
  thread_local std::vector<IndexLine> scratch;
  if (scratch.size() < num_lines) scratch.resize(num_lines);
  lines = scratch.data();
  std::memset(static_cast<void*>(lines), 0, num_lines * sizeof(IndexLine));
}

void RowIndex::Rebuild::Insert(uint64_t hash, uint32_t row) {
  InsertInto(num_lines, HomeAmong(hash, num_lines), TagOf(hash), row,
             [this](uint32_t at) -> IndexLine& { return lines[at]; });
}

uint32_t RowIndex::LinesFor(uint32_t entries, double phase) const {
  const uint32_t now = view() == nullptr ? 0 : view()->num_lines;
  const double growth = kSlowestGrowth + (kFastestGrowth - kSlowestGrowth) * phase;
  const auto grown = static_cast<uint64_t>(now * growth);
  const auto needed = static_cast<uint64_t>(entries / (kLineEntries * kMinFullLoad)) + 1;
  return std::max(now, RoundLines(std::max(grown, needed)));
}

void RowIndex::Replace(const Rebuild& rebuild, double phase, BlockArena& arena) {
  View* old = view_.load(std::memory_order_relaxed);
  View* grown = NewView(rebuild.num_lines);
  const uint32_t kept = old == nullptr ? 0 : old->num_segments;
  uint32_t line = 0;
  for (uint32_t i = 0; i < grown->num_segments; ++i) {
    const size_t bytes = SegmentLines(i) * sizeof(IndexLine);
    grown->segments[i] = i < kept ? old->segments[i] : reinterpret_cast<IndexLine*>(arena.Allocate(bytes));
    std::memcpy(static_cast<void*>(grown->segments[i]), rebuild.lines + line, bytes);
    line += SegmentLines(i);
  }
  limit_ = EntriesAtFullLoad(rebuild.num_lines, phase);
  if (old != nullptr) retired_.push_back(old);
  view_.store(grown, std::memory_order_release);
}

void RowIndex::Insert(uint64_t hash, uint32_t row) {
  View* view = view_.load(std::memory_order_relaxed);
  InsertInto(view->num_lines, view->HomeOf(hash), TagOf(hash), row,
             [view](uint32_t at) -> IndexLine& { return *view->Line(at); });
  ++size_;
}

void RowIndex::Erase(uint64_t hash, uint32_t row) {
  View* view = view_.load(std::memory_order_relaxed);
  MONOLITH_CHECK(view != nullptr);
  const uint8_t tag = TagOf(hash);
  for (uint32_t at = view->HomeOf(hash), seen = 0; seen < view->num_lines; ++seen, at = view->Next(at)) {
    IndexLine& line = *view->Line(at);
    for (TagMatches matches = MatchTags(line, tag); matches.any(); matches.drop_first()) {
      const int entry = matches.first();
      if (line.tags[entry] != tag || line.rows[entry] != row) continue;
      line.tags[entry] = 0;
      for (uint32_t passed = view->HomeOf(hash); passed != at; passed = view->Next(passed)) {
        if (view->Line(passed)->passed != kStickyPassed) --view->Line(passed)->passed;
      }
      --size_;
      return;
    }
  }
  MONOLITH_CHECK(!"entry to erase exists");
}

void RowIndex::Clear(BlockArena& arena) {
  if (View* view = view_.exchange(nullptr, std::memory_order_relaxed); view != nullptr) {
    for (uint32_t i = 0; i < view->num_segments; ++i) {
      arena.Free(reinterpret_cast<std::byte*>(view->segments[i]), SegmentLines(i) * sizeof(IndexLine));
    }
    std::free(view);
  }
  for (View* view : retired_) std::free(view);
  retired_.clear();
  size_ = 0;
  limit_ = 0;
}

size_t RowIndex::MemoryBytes() const {
  const View* current = view();
  if (current == nullptr) return 0;
  size_t bytes = current->num_lines * sizeof(IndexLine) + sizeof(View) + current->num_segments * sizeof(IndexLine*);
  for (const View* view : retired_) bytes += sizeof(View) + view->num_segments * sizeof(IndexLine*);
  return bytes;
}

}  // namespace monolith
