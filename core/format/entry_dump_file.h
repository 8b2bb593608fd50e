// Reading and writing of EntryDump files: from record files to row blocks, and from the blocks of a cut to record
// files. Each call runs in its caller's thread; different threads may read or write different files concurrently.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "format/block_source.h"
#include "format/entry_dump.h"
#include "format/record_file.h"
#include "format/row_block.h"
#include "format/snapshot_io.h"

namespace monolith {

// Consecutive records of one table.
struct DumpSection {
  static constexpr uint64_t kToTheEnd = ~uint64_t{0};

  const EntryDumpCodec* codec;  // null: the records are skipped
  RowBlockHeader header;        // kind, digest and table of the blocks to make
  uint64_t entries;             // how many, or kToTheEnd
  bool skip_zero = false;       // skip rows whose weights are all (almost) zero

  bool IsCounted() const { return entries != kToTheEnd; }
};

// Receives blocks of mixed buckets; may be called several times for one file.
using BlockSink = std::function<void(const std::vector<std::string>& blocks)>;

// Reads a file section by section and passes its rows on in full blocks; without a sink the file is only checked.
// Returns the number of rows. Throws, with file and offset: kDataLoss for damaged bytes; for a record that cannot be
// parsed kFailedPrecondition in a plain file, kDataLoss in a sectioned one; kInvalidArgument for a row that does not
// fit its table.
uint64_t ReadEntryDumpFile(const std::string& path, RecordCompression compression,
                           const std::vector<DumpSection>& sections, const BlockSink& sink, TransferProgress* progress);

struct DumpFilePlan {
  std::string path;
  std::string temporary_path;  // in the same folder; removed on failure
  RecordCompression compression;
};

// Writes the rows of all blocks of `source`, table after table in the order of their numbers; codecs[t] is null for a
// table to skip. Returns the number of entries by table. Throws kFailedPrecondition for serving blocks: they hold no
// state.
std::vector<uint64_t> WriteEntryDumpFile(BlockSource* source, const std::vector<const EntryDumpCodec*>& codecs,
                                         const DumpFilePlan& plan, TransferProgress* progress);

}  // namespace monolith
