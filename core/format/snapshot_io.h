// Reads and writes all files of a snapshot with several threads. Every function blocks its caller until all its threads
// have ended, and rethrows the first error of any of them; data shared with other threads is stated at each member.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "format/block_source.h"
#include "format/snapshot_file.h"
#include "format/task_team.h"

namespace monolith {

struct FilePlan {
  std::string path;
  uint32_t begin;  // buckets [begin, end)
  uint32_t end;
};

struct WriteOptions {
  uint64_t snapshot_id = 0;
  uint64_t bytes_per_second = 0;  // over all threads; 0 = no limit
  int threads = 1;
};

// Opens the blocks of buckets [begin, end). Called by the writing threads, each for its own file.
using SourceFactory = std::function<std::unique_ptr<BlockSource>(uint32_t begin, uint32_t end)>;

// Writes each planned file from its own source; with a limit, past the page cache, since training runs concurrently. On
// any error, or when cancelled (Error kFailedPrecondition), all files of the plan are removed. The folder must exist;
// the caller syncs it (SyncDirectory) before it commits a manifest.
std::vector<SnapshotFileInfo> WriteSnapshotFiles(const std::vector<FilePlan>& plan, const SourceFactory& open_source,
                                                 const WriteOptions& options, TransferProgress* progress);

// Called by several threads concurrently, for different buckets; the blocks of one bucket come in file order from one
// thread. The view is valid during the call only.
using BlockVisitor = std::function<void(const RowBlockView& block)>;

struct ReadOptions {
  int threads = 1;  // more than processors: threads that wait for the disk leave them to the others
  Caching caching = Caching::kThroughCache;
};

// Opens and checks all files, then reads and checks every block of buckets [begin, end) and passes it to `visit`.
// REQUIRES: files do not overlap in buckets.
void VisitSnapshotBlocks(const std::vector<SnapshotFileInfo>& files, uint32_t begin, uint32_t end,
                         const ReadOptions& options, const BlockVisitor& visit, TransferProgress* progress);

}  // namespace monolith
