#include "format/snapshot_io.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "format/rate_limit.h"

namespace monolith {
namespace {

// A bucket up to this size is read by one call; larger ones block by block, to bound the memory of a restore.
constexpr uint64_t kLargestRead = uint64_t{64} << 20;

// Numbers 0..tasks-1 handed out to a few threads; the first error stops the handing out and is rethrown by Run().
class TaskTeam {
 public:
  using Task = std::function<void(size_t task, size_t worker)>;  // workers are numbered from 0

  explicit TaskTeam(const TransferProgress& progress) : progress_(progress) {}

  static size_t Size(size_t tasks, int threads) { return std::min(tasks, static_cast<size_t>(std::max(threads, 1))); }

  void Run(size_t tasks, int threads, const Task& task) {
    std::vector<std::thread> helpers;
    for (size_t worker = 1; worker < Size(tasks, threads); ++worker) {
      helpers.emplace_back([this, tasks, worker, &task] { Work(tasks, worker, task); });
    }
    Work(tasks, 0, task);
    for (std::thread& helper : helpers) helper.join();
    if (error_) std::rethrow_exception(error_);
  }

  // Called inside long tasks: ends them soon after the caller cancelled or another task failed.
  void ThrowIfStopped() const {
    if (progress_.cancelled.load(std::memory_order_relaxed) || failed_.load(std::memory_order_relaxed)) {
      throw Error(Code::kFailedPrecondition, "cancelled by the caller");
    }
  }

 private:
  void Work(size_t tasks, size_t worker, const Task& task) {
    while (!failed_.load(std::memory_order_relaxed)) {
      const size_t next = next_.fetch_add(1, std::memory_order_relaxed);
      if (next >= tasks) return;
      try {
        task(next, worker);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
        failed_.store(true, std::memory_order_relaxed);
      }
    }
  }

  const TransferProgress& progress_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr error_;  // guarded by mutex_ while threads run
};

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
      visit(run.file->View(index, first, *memory));
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
