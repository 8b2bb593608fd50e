// Record files of ByteDance Monolith: a length, a payload and their masked checksums, record after record; optionally
// inside a stream of Snappy blocks. Byte grammar: docs/formats/entry_dump.md. A writer or reader belongs to one thread
// at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "format/file_io.h"

namespace monolith {

enum class RecordCompression { kNone, kSnappy };

class RecordWriter {
 public:
  // The caller owns `file` and commits it after Flush().
  RecordWriter(OutputFile* file, RecordCompression compression) : file_(file), compression_(compression) {}

  void Append(std::string_view record);
  // Passes every byte so far to the file. Writing may continue after a flush.
  void Flush();

 private:
  void CompressPending();

  OutputFile* file_;
  RecordCompression compression_;
  std::string pending_;  // framed, not yet compressed or written
  std::string block_;
};

class RecordReader {
 public:
  RecordReader(std::string path, RecordCompression compression) : file_(std::move(path)), compression_(compression) {}

  // Returns the next record, valid until the next call; false at the end of the file. Throws Error(kDataLoss) with
  // file, offset and reason for a damaged or truncated file.
  bool Next(std::string_view* record);
  // Returns "file '<path>': offset <n>" of the record that Next() returned last, n counted in the uncompressed stream.
  std::string Place() const;
  uint64_t bytes_read() const { return file_offset_; }

 private:
  [[noreturn]] void Refuse(const std::string& reason) const;
  // Makes `size` bytes available from buffer_[begin_] on; false when the stream ends before.
  bool Ensure(uint64_t size);
  bool ReadMore();
  bool ReadSnappyBlock();

  InputFile file_;
  RecordCompression compression_;
  uint64_t file_offset_ = 0;
  uint64_t stream_offset_ = 0;  // of the next record
  uint64_t record_offset_ = 0;  // of the last one
  std::string buffer_;
  size_t begin_ = 0;
  std::string block_;
};

}  // namespace monolith
