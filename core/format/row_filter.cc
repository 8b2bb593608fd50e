#include "format/row_filter.h"

#include <cstring>
#include <utility>
#include <vector>

#include "format/row_block.h"

namespace monolith {

bool RowFilterSource::Next(std::string* block) {
  if (!source_->Next(block)) return false;
  if (drops_) DropRows(drops_, block);
  return true;
}

uint32_t DropRows(const DropsRow& drops, std::string* block) {
  const RowBlockView view(*block, RowBlockView::Trusted{});
  const RowBlockHeader& header = view.header();
  if (header.kind != BlockKind::kFull && header.kind != BlockKind::kServing) return 0;
  std::vector<uint32_t> kept;
  kept.reserve(header.count);
  for (uint32_t row = 0; row < header.count; ++row) {
    if (!drops(header.table, view.key(row), view.time(row))) kept.push_back(row);
  }
  const uint32_t dropped = header.count - static_cast<uint32_t>(kept.size());
  if (dropped == 0) return 0;
  RowBlockBuilder builder(header, static_cast<uint32_t>(kept.size()));
  for (const uint32_t row : kept) {
    std::memcpy(builder.Add(view.key(row), view.time(row)), view.payload(row), header.payload_bytes_per_row);
  }
  *block = builder.Finish();
  return dropped;
}

}  // namespace monolith
