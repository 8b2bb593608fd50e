#include "format/snapshot_io.h"

#include <unistd.h>

#include "base/error.h"
#include "format/rate_limit.h"

namespace monolith {
namespace {

// Size of one read, unless a single block is larger: enough for any disk, and it fits the processor's cache.
constexpr uint64_t kLargestRead = uint64_t{2} << 20;

SnapshotFileInfo WriteOneFile(const FilePlan& plan, const SourceFactory& open_source, const WriteOptions& options,
                              const TaskTeam& team, RateLimit* limit, TransferProgress* progress) {
  // Maintaining the page cache would take more processor time than all the rest, from training that runs during a
  // limited save.
  const Caching caching = options.bytes_per_second == 0 ? Caching::kThroughCache : Caching::kPastCache;
  SnapshotFileWriter writer(plan.path, options.snapshot_id, plan.begin, plan.end, caching);
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

// Blocks of one or more complete buckets that are adjacent in one file: the unit that one thread reads.
struct BucketRun {
  const SnapshotFile* file;
  size_t first;
  size_t last;
};

// Returns the end of the bucket that begins at block `first`.
size_t EndOfBucket(const std::vector<BlockEntry>& blocks, size_t first) {
  size_t last = first + 1;
  while (last < blocks.size() && blocks[last].bucket == blocks[first].bucket) ++last;
  return last;
}

uint64_t BytesOf(const std::vector<BlockEntry>& blocks, size_t first, size_t last) {
  return blocks[last - 1].offset + blocks[last - 1].length - blocks[first].offset;
}

std::vector<BucketRun> RunsOf(const std::vector<std::unique_ptr<SnapshotFile>>& files, uint32_t begin, uint32_t end) {
  std::vector<BucketRun> runs;
  for (const auto& file : files) {
    const std::vector<BlockEntry>& blocks = file->blocks();
    bool joins = false;  // whether the last run is of this file and has room
    for (size_t first = 0; first < blocks.size();) {
      const size_t last = EndOfBucket(blocks, first);
      const bool wanted = blocks[first].bucket >= begin && blocks[first].bucket < end;
      if (wanted && joins && BytesOf(blocks, runs.back().first, last) <= kLargestRead) {
        runs.back().last = last;
      } else if (wanted) {
        runs.push_back({file.get(), first, last});
      }
      joins = wanted;
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

void VisitRun(const BucketRun& run, const BlockVisitor& visit, const TaskTeam& team, TransferBuffer* buffer,
              TransferProgress* progress) {
  const std::vector<BlockEntry>& blocks = run.file->blocks();
  for (size_t first = run.first; first < run.last;) {
    size_t last = first + 1;
    while (last < run.last && BytesOf(blocks, first, last + 1) <= kLargestRead) ++last;
    const std::string_view memory = run.file->Read(first, last, buffer);
    for (size_t index = first; index < last; ++index) {
      team.ThrowIfStopped();
      VisitBlock(*run.file, index, first, memory, visit);
      progress->blocks.fetch_add(1, std::memory_order_relaxed);
    }
    progress->bytes.fetch_add(memory.size(), std::memory_order_relaxed);
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
      written[i] = WriteOneFile(plan[i], open_source, options, team, &limit, progress);
    });
  } catch (...) {
    for (const SnapshotFileInfo& info : written) {
      if (!info.path.empty()) ::unlink(info.path.c_str());
    }
    throw;
  }
  return written;
}

void VisitSnapshotBlocks(const std::vector<SnapshotFileInfo>& files, uint32_t begin, uint32_t end,
                         const ReadOptions& options, const BlockVisitor& visit, TransferProgress* progress) {
  std::vector<std::unique_ptr<SnapshotFile>> open;
  for (const SnapshotFileInfo& info : files) {
    if (info.end > begin && info.begin < end) open.push_back(std::make_unique<SnapshotFile>(info, options.caching));
  }
  const std::vector<BucketRun> runs = RunsOf(open, begin, end);
  std::vector<TransferBuffer> buffers(TaskTeam::Size(runs.size(), options.threads));
  TaskTeam team(*progress);
  team.Run(runs.size(), options.threads,
           [&](size_t i, size_t worker) { VisitRun(runs[i], visit, team, &buffers[worker], progress); });
}

}  // namespace monolith
