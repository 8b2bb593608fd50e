// One file of a snapshot: the row blocks of a range of buckets, an offset index, a footer. Byte grammar:
// docs/formats/snapshot.md. A file is written front to back by one thread; an open file is immutable and thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "format/file_io.h"
#include "format/row_block.h"

namespace monolith {

// What ties a file to its snapshot: the manifest holds these values, and a file that differs in one of them is
// rejected.
struct SnapshotFileInfo {
  std::string path;
  uint64_t snapshot_id = 0;  // drawn once for a snapshot, so that files of two snapshots cannot be mixed
  uint32_t begin = 0;        // buckets [begin, end)
  uint32_t end = 0;
  uint64_t bytes = 0;      // size of the file
  uint32_t index_crc = 0;  // of the index, which holds the checksum of every block: so it covers the complete file
  std::map<uint32_t, uint64_t> rows_by_table;  // filled by the writer; not compared
};

// A block as the index describes it.
struct BlockEntry {
  uint64_t offset;
  uint64_t length;
  uint32_t bucket;
  uint32_t table;
  uint32_t rows;
  BlockKind kind;
  uint32_t crc;
};

class SnapshotFileWriter {
 public:
  // Creates `<path>.tmp`; the file gets its name at Finish() and not before, a destroyed writer leaves nothing.
  SnapshotFileWriter(std::string path, uint64_t snapshot_id, uint32_t begin, uint32_t end,
                     Caching caching = Caching::kThroughCache);

  // Blocks come in ascending bucket order, inside [begin, end). The bytes are not copied.
  void Append(std::string_view block);
  // Writes index and footer, then fsync and rename.
  SnapshotFileInfo Finish();

 private:
  SnapshotFileInfo info_;
  OutputFile file_;
  std::string index_;
  uint32_t last_bucket_;
};

class SnapshotFile {
 public:
  // Opens and checks header, index and footer against each other and against `expected`; blocks are checked when read.
  // Throws Error(kDataLoss) with file, offset and reason, kNotFound for a missing file.
  explicit SnapshotFile(const SnapshotFileInfo& expected, Caching caching = Caching::kThroughCache);

  const std::vector<BlockEntry>& blocks() const { return blocks_; }
  const std::string& path() const { return file_.path(); }

  // Reads blocks [first, last) of the index, which are adjacent, into *memory. Thread-safe.
  std::string_view Read(size_t first, size_t last, TransferBuffer* memory) const;
  // Returns block `index` from the bytes that Read(first, ...) returned: checks its bytes, and that it is the block
  // listed in the index.
  RowBlockView View(size_t index, size_t first, std::string_view memory) const;

 private:
  void CheckFooter(const SnapshotFileInfo& expected);
  void CheckHeader(const SnapshotFileInfo& expected) const;
  void ReadIndex(const SnapshotFileInfo& expected);
  [[noreturn]] void Refuse(uint64_t offset, const std::string& reason) const;

  InputFile file_;
  uint64_t index_offset_ = 0;
  uint64_t index_entries_ = 0;
  std::vector<BlockEntry> blocks_;
};

}  // namespace monolith
