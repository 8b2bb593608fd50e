#include "format/record_file.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "format/crc32c.h"
#include "format/snappy.h"

namespace monolith {
namespace {

constexpr size_t kFrameHead = 12;  // u64 length, u32 masked checksum of it
constexpr size_t kFrameTail = 4;   // u32 masked checksum of the payload
constexpr uint64_t kReadStep = uint64_t{4} << 20;
constexpr size_t kWriteStep = size_t{1} << 20;
// ByteDance Monolith's reader holds a compressed and an uncompressed block in 256 KiB each; half of that fits, however
// badly it compresses.
constexpr size_t kSnappyBlock = size_t{128} << 10;
constexpr uint32_t kLargestSnappyBlock = uint32_t{256} << 20;

template <typename Number>
Number Load(const char* at) {
  Number number;
  std::memcpy(&number, at, sizeof(number));
  return number;
}

template <typename Number>
void Put(Number number, std::string* to) {
  to->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

bool ChecksumIs(const char* bytes, size_t size, uint32_t masked) { return MaskCrc(Crc32c(bytes, size)) == masked; }

}  // namespace

void RecordWriter::Append(std::string_view record) {
  const size_t frame = pending_.size();
  Put(uint64_t{record.size()}, &pending_);
  Put(MaskCrc(Crc32c(pending_.data() + frame, 8)), &pending_);
  pending_.append(record);
  Put(MaskCrc(Crc32c(record)), &pending_);
  if (pending_.size() < kWriteStep) return;
  if (compression_ == RecordCompression::kNone) {
    Flush();
  } else {
    CompressPending();
  }
}

void RecordWriter::CompressPending() {
  for (size_t at = 0; at < pending_.size(); at += kSnappyBlock) {
    block_.assign(4, '\0');
    SnappyCompress(std::string_view(pending_).substr(at, kSnappyBlock), &block_);
    const size_t size = block_.size() - 4;
    for (size_t i = 0; i < 4; ++i) block_[i] = static_cast<char>(size >> (24 - 8 * i));  // big-endian
    file_->Append(block_);
  }
  pending_.clear();
}

void RecordWriter::Flush() {
  if (compression_ == RecordCompression::kSnappy) {
    CompressPending();
    return;
  }
  file_->Append(pending_);
  pending_.clear();
}

std::string RecordReader::Place() const {
  return QuotedFile(file_.path()) + ": offset " + std::to_string(record_offset_);
}

void RecordReader::Refuse(const std::string& reason) const {
  throw Error(Code::kDataLoss, QuotedFile(file_.path()) + ": offset " + std::to_string(stream_offset_) + ": " + reason);
}

bool RecordReader::ReadSnappyBlock() {
  const uint64_t left = file_.size() - file_offset_;
  if (left == 0) return false;
  char head[4];
  if (left < sizeof(head)) Refuse("the length of a Snappy block is cut off");
  file_.ReadAt(file_offset_, head, sizeof(head));
  uint32_t size = 0;
  for (const char byte : head) size = (size << 8) | static_cast<unsigned char>(byte);
  if (size > kLargestSnappyBlock || size > left - sizeof(head)) {
    Refuse("Snappy block of " + std::to_string(size) + " bytes, " + std::to_string(left - sizeof(head)) +
           " are left in the file");
  }
  block_.resize(size);
  file_.ReadAt(file_offset_ + sizeof(head), block_.data(), size);
  if (!SnappyUncompress(block_, &buffer_))
    Refuse("not a Snappy block at byte " + std::to_string(file_offset_) + " of the file");
  file_offset_ += sizeof(head) + size;
  return true;
}

bool RecordReader::ReadMore() {
  if (compression_ == RecordCompression::kSnappy) return ReadSnappyBlock();
  const uint64_t step = std::min(kReadStep, file_.size() - file_offset_);
  if (step == 0) return false;
  const size_t held = buffer_.size();
  buffer_.resize(held + step);
  file_.ReadAt(file_offset_, buffer_.data() + held, step);
  file_offset_ += step;
  return true;
}

bool RecordReader::Ensure(uint64_t size) {
  if (buffer_.size() - begin_ >= size) return true;
  buffer_.erase(0, begin_);
  begin_ = 0;
  while (buffer_.size() < size) {
    if (!ReadMore()) return false;
  }
  return true;
}

bool RecordReader::Next(std::string_view* record) {
  if (!Ensure(kFrameHead)) {
    if (!buffer_.empty())
      Refuse("record head of 12 bytes expected, " + std::to_string(buffer_.size()) + " are left (truncated)");
    return false;
  }
  const auto length = Load<uint64_t>(buffer_.data() + begin_);
  if (!ChecksumIs(buffer_.data() + begin_, 8, Load<uint32_t>(buffer_.data() + begin_ + 8))) {
    Refuse("checksum of a record length does not match: not a record file, or damaged");
  }
  if (length > (uint64_t{1} << 62) || !Ensure(kFrameHead + length + kFrameTail)) {
    Refuse("record of " + std::to_string(length) + " bytes reaches beyond the end of the file (truncated)");
  }
  const char* payload = buffer_.data() + begin_ + kFrameHead;
  if (!ChecksumIs(payload, length, Load<uint32_t>(payload + length))) Refuse("checksum of a record does not match");
  *record = std::string_view(payload, length);
  begin_ += kFrameHead + length + kFrameTail;
  record_offset_ = stream_offset_;
  stream_offset_ += kFrameHead + length + kFrameTail;
  return true;
}

}  // namespace monolith
