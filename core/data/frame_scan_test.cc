#include "data/frame_scan.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "format/crc32c.h"

namespace monolith {
namespace {

constexpr ScanLimits kLimits{uint64_t{1} << 20, uint64_t{1} << 40};

std::string Word(uint64_t number) { return {reinterpret_cast<const char*>(&number), 8}; }

std::string Checksum(const std::string& bytes) {
  const uint32_t masked = MaskCrc(Crc32c(bytes));
  return {reinterpret_cast<const char*>(&masked), 4};
}

std::string TfRecord(const std::string& payload) {
  const std::string length = Word(payload.size());
  return length + Checksum(length) + payload + Checksum(payload);
}

std::vector<std::string> Payloads(const std::string& bytes, const FrameScan& scan) {
  std::vector<std::string> payloads;
  for (size_t i = 0; i < scan.spans.size(); i += 2) {
    payloads.push_back(bytes.substr(static_cast<size_t>(scan.spans[i]), static_cast<size_t>(scan.spans[i + 1])));
  }
  return payloads;
}

const std::vector<std::string> kTwo{"one", "three"};

TEST(FrameScan, ReadsEveryHeader) {
  const std::string one = Word(3) + "one";
  const std::string three = Word(5) + "three";
  const std::vector<std::pair<Framing, std::string>> cases{
      {{}, one + three},
      {Framing(Framing::kSortId), Word(2) + "id" + one + Word(0) + three},
      {Framing(Framing::kSortId | Framing::kKafkaDump), Word(0) + Word(9) + one + Word(2) + "id" + Word(9) + three},
      {Framing(Framing::kKafkaDumpPrefix | Framing::kSortId),
       Word(0) + Word(9) + Word(1) + "x" + one + Word(2) + "id" + three},
      {Framing(Framing::kKafkaDumpPrefix), Word(0) + Word(9) + one + Word(2) + "id" + three},
      {Framing(Framing::kLagrangex), Word(7) + one + Word(7) + three},
      {Framing(Framing::kTfRecord), TfRecord("one") + TfRecord("three")},
  };
  for (const auto& [framing, bytes] : cases) {
    const FrameScan scan = ScanFrames(bytes, 0, framing, true, kLimits);
    EXPECT_EQ(scan.problem, FrameProblem::kNone);
    EXPECT_EQ(Payloads(bytes, scan), kTwo);
    EXPECT_EQ(scan.consumed, bytes.size());
    EXPECT_EQ(scan.wanted, 0u);
  }
}

TEST(FrameScan, WaitsForTheRestUnlessTheStreamHasEnded) {
  const std::string bytes = TfRecord("one") + TfRecord("three");
  const uint64_t first = TfRecord("one").size();
  for (uint64_t size = 1; size < bytes.size(); ++size) {
    if (size == first) continue;
    const FrameScan open =
        ScanFrames(std::string_view(bytes).substr(0, size), 0, Framing(Framing::kTfRecord), false, kLimits);
    EXPECT_EQ(open.problem, FrameProblem::kNone);
    EXPECT_EQ(open.consumed, size < first ? 0 : first);
    EXPECT_GT(open.consumed + open.wanted, size);
    const FrameScan ended =
        ScanFrames(std::string_view(bytes).substr(0, size), 0, Framing(Framing::kTfRecord), true, kLimits);
    EXPECT_EQ(ended.problem, FrameProblem::kTruncated);
  }
}

TEST(FrameScan, TellsWhereToGoOnBehindABadRecord) {
  std::string bytes = TfRecord("one") + TfRecord("three");
  bytes[13] ^= 1;
  FrameScan scan = ScanFrames(bytes, 0, Framing(Framing::kTfRecord), true, kLimits);
  EXPECT_EQ(scan.problem, FrameProblem::kChecksum);
  EXPECT_EQ(scan.resume, TfRecord("one").size());
  bytes[2] ^= 1;
  scan = ScanFrames(bytes, 0, Framing(Framing::kTfRecord), true, kLimits);
  EXPECT_EQ(scan.problem, FrameProblem::kLengthChecksum);
  EXPECT_EQ(FindTfRecord(bytes, scan.resume), TfRecord("one").size());
  const std::string large = Word(2 << 20) + "x";
  scan = ScanFrames(large, 0, {}, false, kLimits);
  EXPECT_EQ(scan.problem, FrameProblem::kOversized);
  EXPECT_EQ(scan.resume, 8u + (2 << 20));
  scan = ScanFrames(Word(0xfefefefe), 0, {}, false, kLimits);
  EXPECT_EQ(scan.problem, FrameProblem::kCorruptMark);
}

// Returns every framing.
std::vector<Framing> AllFramings() {
  std::vector<Framing> framings;
  for (uint32_t parts = 0; parts < 256; ++parts) {
    try {
      framings.emplace_back(parts);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
    }
  }
  return framings;
}

TEST(FrameScan, PartsThatExcludeEachOtherMakeNoFraming) {
  EXPECT_THROW(Framing(Framing::kTfRecord | Framing::kSortId), Error);
  EXPECT_THROW(Framing(Framing::kLagrangex | Framing::kKafkaDump), Error);
  EXPECT_THROW(Framing(Framing::kTfRecord | Framing::kLagrangex), Error);
  EXPECT_THROW(Framing(uint32_t{1} << 31), Error);
}

TEST(FrameScan, SurvivesAnyBytes) {
  const std::vector<Framing> framings = AllFramings();
  std::mt19937 random(301);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes(random() % 80, '\0');
    // Mostly zeros, so that lengths are small and headers are passed.
    for (char& byte : bytes) byte = random() % 3 == 0 ? static_cast<char>(random()) : '\0';
    const uint32_t bits = random();
    const Framing framing = framings[(bits >> 8) % framings.size()];
    const FrameScan scan = ScanFrames(bytes, 0, framing, (bits & 128) != 0, kLimits);
    ASSERT_LE(scan.consumed, bytes.size());
    for (size_t i = 0; i < scan.spans.size(); i += 2) {
      ASSERT_LE(static_cast<uint64_t>(scan.spans[i] + scan.spans[i + 1]), bytes.size());
    }
  }
}

}  // namespace
}  // namespace monolith
