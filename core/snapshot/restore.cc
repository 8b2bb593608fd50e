#include "snapshot/restore.h"

#include <atomic>
#include <memory>
#include <optional>

#include "base/error.h"
#include "table/loader.h"

namespace monolith {
namespace {

// Returns the block with the table number of the group; nothing for a table to skip.
std::optional<RowBlockView> Mapped(const RowBlockView& block, const RestorePlan& plan) {
  const RowBlockHeader& header = block.header();
  if (header.kind == BlockKind::kFilter) return block;
  if (header.table >= plan.tables.size()) {
    throw Error(Code::kDataLoss, "block of table number " + std::to_string(header.table) + ", the manifest has " +
                                     std::to_string(plan.tables.size()) + " tables");
  }
  const int target = plan.tables[header.table];
  if (target < 0) return std::nullopt;
  return block.WithTable(static_cast<uint32_t>(target));
}

}  // namespace

void CheckSnapshot(Group& group, const RestorePlan& plan, TransferProgress* progress) {
  const Loader loader(group, plan.begin, plan.end, plan.source_schemas);
  const auto check = [&](const RowBlockView& block) {
    if (const auto mapped = Mapped(block, plan)) loader.Check(*mapped);
  };
  // Through the page cache: the checked bytes will be read once more.
  VisitSnapshotBlocks(plan.files, plan.begin, plan.end, {plan.threads, Caching::kThroughCache}, check, progress);
}

std::vector<int64_t> LoadSnapshot(Group& group, const RestorePlan& plan, TransferProgress* progress) {
  const auto num_tables = static_cast<size_t>(group.num_tables());
  const auto rows = std::make_unique<std::atomic<int64_t>[]>(num_tables);
  Loader loader(group, plan.begin, plan.end, plan.source_schemas);
  const auto load = [&](const RowBlockView& block) {
    const auto mapped = Mapped(block, plan);
    if (!mapped) return;
    loader.Check(*mapped);  // the file may have changed since CheckSnapshot
    rows[mapped->header().table].fetch_add(loader.Write({&*mapped, 1}), std::memory_order_relaxed);
  };
  VisitSnapshotBlocks(plan.files, plan.begin, plan.end, {plan.threads, Caching::kPastCache}, load, progress);
  std::vector<int64_t> written(num_tables);
  for (size_t table = 0; table < num_tables; ++table) written[table] = rows[table].load(std::memory_order_relaxed);
  return written;
}

}  // namespace monolith
