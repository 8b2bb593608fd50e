#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "format/snapshot_file.h"
#include "format/snapshot_io.h"

namespace monolith {
namespace {

namespace fs = std::filesystem;

class ListSource : public BlockSource {
 public:
  explicit ListSource(std::vector<std::string> blocks) : blocks_(std::move(blocks)) {}
  bool Next(std::string* block) override {
    if (next_ == blocks_.size()) return false;
    *block = blocks_[next_++];
    return true;
  }

 private:
  std::vector<std::string> blocks_;
  size_t next_ = 0;
};

std::string BlockOf(uint32_t bucket, uint32_t table, uint32_t rows) {
  RowBlockHeader header;
  header.digest = 77 + table;
  header.table = table;
  header.bucket = bucket;
  header.payload_bytes_per_row = 12;
  RowBlockBuilder builder(header, rows);
  for (uint32_t row = 0; row < rows; ++row)
    std::memset(builder.Add(bucket * 1000 + row, row), static_cast<int>(row), 12);
  return builder.Finish();
}

uint32_t RowsOf(uint32_t bucket, uint32_t table) { return (bucket * 7 + table) % 4; }

std::vector<std::string> BlocksOf(uint32_t begin, uint32_t end) {
  std::vector<std::string> blocks;
  for (uint32_t bucket = begin; bucket < end; ++bucket) {
    if (bucket % 3 == 0) blocks.push_back(BuildFilterBlock(bucket, 5, "filter of " + std::to_string(bucket)));
    for (uint32_t table = 0; table < 2; ++table) blocks.push_back(BlockOf(bucket, table, RowsOf(bucket, table)));
  }
  return blocks;
}

std::unique_ptr<BlockSource> OpenSource(uint32_t begin, uint32_t end) {
  return std::make_unique<ListSource>(BlocksOf(begin, end));
}

class Snapshot : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = fs::temp_directory_path() / "monolith-snapshot-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::vector<FilePlan> Plan(const std::vector<uint32_t>& cuts) const {
    std::vector<FilePlan> plan;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      plan.push_back({(folder_ / ("f" + std::to_string(i))).string(), cuts[i], cuts[i + 1]});
    }
    return plan;
  }

  std::vector<SnapshotFileInfo> Write(const std::vector<uint32_t>& cuts, uint64_t id = 99, int threads = 2) {
    return WriteSnapshotFiles(Plan(cuts), OpenSource, {id, 0, threads}, &progress_);
  }

  // (bucket, table, kind) -> rows, of everything that a visit passes on.
  using Seen = std::map<std::tuple<uint32_t, uint32_t, BlockKind>, uint32_t>;
  Seen Visit(const std::vector<SnapshotFileInfo>& files, uint32_t begin, uint32_t end, int threads = 3) {
    Seen seen;
    std::mutex mutex;
    const auto visit = [&](const RowBlockView& block) {
      const std::lock_guard lock(mutex);
      const RowBlockHeader& header = block.header();
      EXPECT_TRUE(seen.insert({{header.bucket, header.table, header.kind}, header.count}).second);
    };
    VisitSnapshotBlocks(files, begin, end, {threads, Caching::kThroughCache}, visit, &progress_);
    return seen;
  }

  std::string Reason(const std::vector<SnapshotFileInfo>& files) {
    try {
      Visit(files, 0, 1024, 1);
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == Code::kDataLoss || error.code() == Code::kNotFound) << error.what();
      return error.what();
    }
    return "accepted";
  }

  size_t FilesInFolder() const { return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {})); }

  fs::path folder_;
  TransferProgress progress_;
};

std::string Slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void Spill(const fs::path& path, const std::string& bytes) {
  fs::remove(path);  // rewriting a truncated file makes some file systems flush at close
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

TEST_F(Snapshot, AnyNumberOfFilesAndThreadsGivesBackEveryBlock) {
  for (const std::vector<uint32_t>& cuts :
       {std::vector<uint32_t>{0, 1024}, {0, 1, 1023, 1024}, {0, 100, 200, 300, 1024}}) {
    const auto files = Write(cuts);
    const Seen seen = Visit(files, 0, 1024);
    EXPECT_EQ(seen.size(), 2 * 1024u + 342);
    std::map<uint32_t, uint64_t> rows;
    for (const auto& file : files) {
      for (const auto& [table, count] : file.rows_by_table) rows[table] += count;
    }
    std::map<uint32_t, uint64_t> expected;
    for (uint32_t bucket = 0; bucket < 1024; ++bucket) {
      for (uint32_t table = 0; table < 2; ++table) {
        expected[table] += RowsOf(bucket, table);
        EXPECT_EQ(seen.at({bucket, table, BlockKind::kFull}), RowsOf(bucket, table));
      }
    }
    EXPECT_EQ(rows, expected);
  }
}

TEST_F(Snapshot, OnlyTheWantedBucketsAreRead) {
  const auto files = Write({0, 10, 20, 1024});
  fs::remove(files[2].path);
  const Seen seen = Visit(files, 5, 15);
  std::set<uint32_t> buckets;
  for (const auto& [place, rows] : seen) buckets.insert(std::get<0>(place));
  EXPECT_EQ(buckets, (std::set<uint32_t>{5, 6, 7, 8, 9, 10, 11, 12, 13, 14}));
  EXPECT_NE(Reason(files).find("No such file"), std::string::npos);
}

TEST_F(Snapshot, AFileWithoutBlocksIsAFile) {
  const auto empty = [](uint32_t, uint32_t) { return std::make_unique<ListSource>(std::vector<std::string>{}); };
  const auto files = WriteSnapshotFiles(Plan({0, 1024}), empty, {1, 0, 1}, &progress_);
  EXPECT_EQ(files[0].bytes, 80u);
  EXPECT_TRUE(Visit(files, 0, 1024).empty());
}

TEST_F(Snapshot, EveryBitFlipAndEveryTruncationIsRefused) {
  const auto files = Write({0, 4, 5});
  const std::string good = Slurp(files[1].path);
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    Spill(files[1].path, bad);
    ASSERT_NE(Reason(files), "accepted") << "bit " << bit;
  }
  for (size_t size = 0; size < good.size(); ++size) {
    Spill(files[1].path, good.substr(0, size));
    ASSERT_NE(Reason(files), "accepted") << "size " << size;
  }
  Spill(files[1].path, good + "x");
  EXPECT_NE(Reason(files).find("bytes long, the manifest has"), std::string::npos);
  Spill(files[1].path, good);
  EXPECT_EQ(Reason(files), "accepted");
}

TEST_F(Snapshot, TruncationIsRefusedEvenWhenTheExpectedSizeAgrees) {
  auto files = Write({0, 3});
  const std::string good = Slurp(files[0].path);
  for (size_t size = 0; size < good.size(); ++size) {
    Spill(files[0].path, good.substr(0, size));
    files[0].bytes = size;
    ASSERT_NE(Reason(files), "accepted") << "size " << size;
  }
}

TEST_F(Snapshot, RandomDamageNeverCrashesAndIsNeverAccepted) {
  const auto files = Write({0, 6});
  const std::string good = Slurp(files[0].path);
  std::mt19937_64 random(305);
  for (int trial = 0; trial < 3000; ++trial) {
    std::string bad = good;
    const int kind = static_cast<int>(random() % 4);
    const size_t at = random() % bad.size();
    const size_t length = std::min<size_t>(1 + random() % 64, bad.size() - at);
    if (kind == 0) {
      for (size_t i = 0; i < length; ++i) bad[at + i] = static_cast<char>(random());
    } else if (kind == 1) {
      bad.erase(at, length);
    } else if (kind == 2) {
      bad.insert(at, bad.substr(random() % bad.size(), length));
    } else {
      std::fill_n(bad.begin() + static_cast<std::ptrdiff_t>(at), length, '\0');
    }
    if (bad == good) continue;
    Spill(files[0].path, bad);
    auto same_size = files;
    same_size[0].bytes = bad.size();
    ASSERT_NE(Reason(files), "accepted");
    ASSERT_NE(Reason(same_size), "accepted");
  }
}

TEST_F(Snapshot, SwappedForeignAndMixedFilesAreRefused) {
  const auto files = Write({0, 4, 8});
  const std::string first = Slurp(files[0].path);
  const std::string second = Slurp(files[1].path);
  Spill(files[0].path, second);
  Spill(files[1].path, first);
  EXPECT_NE(Reason(files), "accepted");
  Spill(files[0].path, std::string(first.size(), 'P'));
  EXPECT_NE(Reason(files).find("not a snapshot file"), std::string::npos);
  const auto other = Write({0, 4, 8}, 100);
  EXPECT_EQ(other[0].bytes, files[0].bytes);
  EXPECT_NE(Reason(files).find("belongs to another snapshot"), std::string::npos);
}

TEST_F(Snapshot, AnErrorInOneFileLeavesNoFileBehind) {
  class Failing : public BlockSource {
   public:
    bool Next(std::string* /*block*/) override { throw Error(Code::kUnavailable, "no more"); }
  };
  const auto open = [](uint32_t begin, uint32_t end) -> std::unique_ptr<BlockSource> {
    if (begin == 512) return std::make_unique<Failing>();
    return OpenSource(begin, end);
  };
  for (const int threads : {1, 3}) {
    EXPECT_THROW(WriteSnapshotFiles(Plan({0, 256, 512, 1024}), open, {1, 0, threads}, &progress_), Error);
    EXPECT_EQ(FilesInFolder(), 0u);
  }
}

TEST_F(Snapshot, CancellingLeavesNoFileBehind) {
  progress_.cancelled = true;
  EXPECT_THROW(Write({0, 512, 1024}), Error);
  EXPECT_EQ(FilesInFolder(), 0u);
}

TEST_F(Snapshot, NoSpaceIsResourceExhaustedNamesTheFileAndLeavesNothing) {
  rlimit old_limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t size : {rlim_t{0}, rlim_t{1000}, rlim_t{100000}}) {
    const rlimit limit{size, old_limit.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    std::string message = "written";
    try {
      Write({0, 1024});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kStorageFull);
      message = error.what();
    }
    ::setrlimit(RLIMIT_FSIZE, &old_limit);
    EXPECT_NE(message.find("f0.tmp': writing failed"), std::string::npos) << message;
    EXPECT_EQ(FilesInFolder(), 0u);
  }
  std::signal(SIGXFSZ, old_handler);
}

TEST_F(Snapshot, MissingFolderIsNotFound) {
  try {
    WriteSnapshotFiles({{(folder_ / "none" / "f").string(), 0, 1024}}, OpenSource, {}, &progress_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kNotFound);
  }
}

TEST_F(Snapshot, RateLimitHoldsOverAllThreads) {
  uint64_t bytes = 0;
  for (const std::string& block : BlocksOf(0, 1024)) bytes += block.size();
  const auto start = std::chrono::steady_clock::now();
  WriteSnapshotFiles(Plan({0, 512, 1024}), OpenSource, {1, 4 * bytes, 2}, &progress_);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_GT(seconds, 0.24);
  EXPECT_EQ(progress_.bytes, bytes);
}

}  // namespace
}  // namespace monolith
