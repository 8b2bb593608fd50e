#include "table/row_index.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace monolith {
namespace {

// The load at which an index grows, and by how much: both differ between siblings, so that they do not all grow in one
// batch. At such loads about 3 % of the entries have overflowed their home line and cost a second line to find.
constexpr double kMinFullLoad = 0.83;
constexpr double kMaxFullLoad = 0.89;
constexpr double kSlowestGrowth = 1.25;
constexpr double kFastestGrowth = 1.45;
constexpr uint16_t kStickyPassed =
    0xffff;  // saturated: searches always continue past such a line, which is slow but correct

uint32_t EntriesAtFullLoad(uint32_t num_lines, double phase) {
  if (num_lines <= 2) return num_lines * kLineEntries;
  return static_cast<uint32_t>(num_lines * kLineEntries * (kMinFullLoad + (kMaxFullLoad - kMinFullLoad) * phase));
}

uint32_t RoundUp(uint64_t lines) {
  if (lines <= kPlateLines) return static_cast<uint32_t>(std::bit_ceil(std::max<uint64_t>(lines, 1)));
  return static_cast<uint32_t>((lines + kPlateLines - 1) / kPlateLines * kPlateLines);
}

}  // namespace

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
  uint32_t at = HomeLine(hash, num_lines);
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
  const uint32_t free = now < kPlateLines ? 0 : memory_->LinesOnPlates(bucket_);
  // The required size is rounded up; the room for growth beyond it is rounded to the nearest, to save memory.
  return std::max(
      {now, RoundUp(needed), free > now ? free : RoundUp(grown - std::min<uint64_t>(grown, kPlateLines / 2))});
}

void RowIndex::Replace(const Rebuild& rebuild, double phase) {
  memory_->Replace(bucket_, rebuild.lines, rebuild.num_lines);
  limit_ = EntriesAtFullLoad(rebuild.num_lines, phase);
}

void RowIndex::InsertAfterHome(uint64_t hash, uint32_t row) {
  const IndexShape now = shape();
  for (uint32_t at = now.HomeOf(hash); !Put(*now.Line(at), hash, row); at = now.Next(at)) {
    IndexLine& full = *now.Line(at);
    if (full.passed != kStickyPassed) ++full.passed;
  }
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
      memory_->SetSize(bucket_, size() - 1);
      return;
    }
  }
  MONOLITH_CHECK(!"entry to erase exists");
}

}  // namespace monolith
