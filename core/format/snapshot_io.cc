#include "format/snapshot_io.h"

#include <unistd.h>

#include "base/error.h"
#include "format/rate_limit.h"

namespace monolith {
namespace {

// A bucket up to this size is read by one call; larger ones block by block, to bound the memory of a restore.
constexpr uint64_t kLargestRead = uint64_t{64} << 20;

SnapshotFileInfo WriteOneFile(const FilePlan& plan, const SourceFactory& open_source, uint64_t snapshot_id,
                              const TaskTeam& team, RateLimit* limit, TransferProgress* progress) {
  SnapshotFileWriter writer(plan.path, snapshot_id, plan.begin, plan.end);
  const std::unique_ptr<BlockSource> source = open_source(plan.begin, plan.end);
  std::string block;
  while (source->Next(&block)) {
    limit->Wait(block.size(), &progress->cancelled);
    team.ThrowIfStopped();
    writer.Append(block);
    progress->bytes.fetch_add(block.size(), std::memory_order_relaxed);
    progress->blocks.fetch_add(1, std::memory_order_relaxed);
  }
  team.ThrowIfStopped();
  return writer.Finish();
}

// Consecutive blocks of one bucket in one file: what one thread reads at a time.
struct BucketRun {
  const SnapshotFile* file;
  size_t first;
  size_t last;
};

std::vector<BucketRun> RunsOf(const std::vector<std::unique_ptr<SnapshotFile>>& files, uint32_t begin, uint32_t end) {
  std::vector<BucketRun> runs;
  for (const auto& file : files) {
    const std::vector<BlockEntry>& blocks = file->blocks();
    for (size_t first = 0; first < blocks.size();) {
      size_t last = first + 1;
      while (last < blocks.size() && blocks[last].bucket == blocks[first].bucket) ++last;
      if (blocks[first].bucket >= begin && blocks[first].bucket < end) runs.push_back({file.get(), first, last});
      first = last;
    }
  }
  return runs;
}

void VisitBlock(const SnapshotFile& file, size_t index, size_t first, std::string_view memory,
                const BlockVisitor& visit) {
  const RowBlockView block = file.View(index, first, memory);
  try {
    visit(block);
  } catch (const Error& error) {
    throw Error(error.code(), QuotedFile(file.path()) + ": offset " + std::to_string(file.blocks()[index].offset) +
                                  ": " + error.what());
  }
}

void VisitRun(const BucketRun& run, const BlockVisitor& visit, const TaskTeam& team, std::string* memory,
              TransferProgress* progress) {
  const std::vector<BlockEntry>& blocks = run.file->blocks();
  for (size_t first = run.first; first < run.last;) {
    size_t last = first + 1;
    uint64_t bytes = blocks[first].length;
    for (; last < run.last && bytes + blocks[last].length <= kLargestRead; ++last) bytes += blocks[last].length;
    run.file->Read(first, last, memory);
    for (size_t index = first; index < last; ++index) {
      team.ThrowIfStopped();
      VisitBlock(*run.file, index, first, *memory, visit);
      progress->blocks.fetch_add(1, std::memory_order_relaxed);
    }
    progress->bytes.fetch_add(bytes, std::memory_order_relaxed);
    first = last;
  }
}

}  // namespace

std::vector<SnapshotFileInfo> WriteSnapshotFiles(const std::vector<FilePlan>& plan, const SourceFactory& open_source,
                                                 const WriteOptions& options, TransferProgress* progress) {
  std::vector<SnapshotFileInfo> written(plan.size());
  RateLimit limit(options.bytes_per_second);
  TaskTeam team(*progress);
  try {
    team.Run(plan.size(), options.threads, [&](size_t i, size_t /*worker*/) {
      written[i] = WriteOneFile(plan[i], open_source, options.snapshot_id, team, &limit, progress);
    });
  } catch (...) {
    for (const SnapshotFileInfo& info : written) {
      if (!info.path.empty()) ::unlink(info.path.c_str());
    }
    throw;
  }
  return written;
}

void VisitSnapshotBlocks(const std::vector<SnapshotFileInfo>& files, uint32_t begin, uint32_t end, int threads,
                         const BlockVisitor& visit, TransferProgress* progress) {
  std::vector<std::unique_ptr<SnapshotFile>> open;
  for (const SnapshotFileInfo& info : files) {
    if (info.end > begin && info.begin < end) open.push_back(std::make_unique<SnapshotFile>(info));
  }
  const std::vector<BucketRun> runs = RunsOf(open, begin, end);
  std::vector<std::string> memory(TaskTeam::Size(runs.size(), threads));
  TaskTeam team(*progress);
  team.Run(runs.size(), threads,
           [&](size_t i, size_t worker) { VisitRun(runs[i], visit, team, &memory[worker], progress); });
}

}  // namespace monolith
