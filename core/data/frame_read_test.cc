#include "data/frame_read.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "data/file_for_test.h"
#include "data/file_read.h"
#include "format/crc32c.h"

namespace monolith {
namespace {

constexpr uint64_t kMaxRecordBytes = uint64_t{1} << 20;

std::string Word(uint64_t number) { return {reinterpret_cast<const char*>(&number), 8}; }

std::string Checksum(const std::string& bytes) {
  const uint32_t masked = MaskCrc(Crc32c(bytes));
  return {reinterpret_cast<const char*>(&masked), 4};
}

// About `size` bytes of records, most of them short, some longer than a piece.
std::string Stream(bool tfrecord, size_t size, std::mt19937& random) {
  std::string stream;
  while (stream.size() < size) {
    std::string payload(random() % 50 == 0 ? random() % 700'000 : random() % 5'000, static_cast<char>(random()));
    const std::string length = Word(payload.size());
    stream += tfrecord ? length + Checksum(length) + payload + Checksum(payload) : length + payload;
  }
  return stream;
}

// Expects ReadFrames to return the results of ReadFile and ScanFrames.
void ExpectTheSame(const std::string& stream, const Framing& framing, size_t target_size, size_t kept) {
  const FileOf file(stream);
  kept = std::min(kept, stream.size());
  std::string expected(target_size, 'x');
  std::copy_n(stream.begin(), kept, expected.begin());
  std::string target = expected;
  const uint64_t size = kept + ReadFile(file.descriptor(), kept, std::span(expected).subspan(kept));
  const bool at_end = size < target_size;
  const FrameScan scan = ScanFrames({expected.data(), size}, 0, framing, at_end, {kMaxRecordBytes, UINT64_MAX});
  const FrameRead read = ReadFrames(file.descriptor(), kept, target, kept, framing, kMaxRecordBytes);
  EXPECT_EQ(read.size, size);
  EXPECT_EQ(target, expected);
  EXPECT_EQ(read.scan.spans, scan.spans);
  EXPECT_EQ(read.scan.consumed, scan.consumed);
  EXPECT_EQ(read.scan.wanted, scan.wanted);
  EXPECT_EQ(read.scan.problem, scan.problem);
  EXPECT_EQ(read.scan.reason, scan.reason);
  EXPECT_EQ(read.scan.resume, scan.resume);
}

TEST(FrameRead, FindsWhatReadingAndScanningFind) {
  const int threads = NumThreads();
  std::mt19937 random(301);
  for (const int count : {1, 4}) {
    SetNumThreads(count);
    for (const bool tfrecord : {false, true}) {
      const Framing framing = tfrecord ? Framing(Framing::kTfRecord) : Framing();
      const std::string stream = Stream(tfrecord, 3'000'000, random);
      for (const size_t size : {size_t{1}, size_t{300'000}, size_t{2'000'000}, stream.size(), size_t{6'000'000}}) {
        for (const size_t kept : {size_t{0}, size_t{1}, size_t{5'000}}) {
          if (kept <= size) ExpectTheSame(stream, framing, size, kept);
        }
      }
    }
  }
  SetNumThreads(threads);
}

TEST(FrameRead, FindsTheFirstDamageWhereverItIs) {
  const int threads = NumThreads();
  SetNumThreads(3);
  std::mt19937 random(302);
  for (int round = 0; round < 30; ++round) {
    std::string stream = Stream(true, 1'500'000, random);
    for (uint32_t damage = random() % 4; damage > 0; --damage) stream[random() % stream.size()] ^= 1;
    if (random() % 2 == 0) stream.resize(random() % stream.size());
    ExpectTheSame(stream, Framing(Framing::kTfRecord), 1'000'000 + random() % 1'000'000, random() % 3'000);
  }
  SetNumThreads(threads);
}

TEST(FrameRead, OfNothingIsNothing) {
  ExpectTheSame("", Framing(Framing::kTfRecord), 1'000'000, 0);
  ExpectTheSame("", Framing(Framing::kTfRecord), 0, 0);
}

TEST(FrameRead, ReportsWhatTheSystemRefuses) {
  std::string target(2'000'000, 'x');
  EXPECT_THROW(ReadFrames(-1, 0, target, 0, Framing(Framing::kTfRecord), kMaxRecordBytes), Error);
}

}  // namespace
}  // namespace monolith
