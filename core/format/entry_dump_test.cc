#include "format/entry_dump.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "format/entry_dump_file.h"

namespace monolith {
namespace {

namespace fs = std::filesystem;

constexpr int kDim = 3;

int StateBytesOf(const RowOptimizerKind& kind) {
  int bytes = 0;
  for (const StateMember& member : kind.dump.members) {
    const bool is_list = member.form == StateMember::Form::kPerWeight || member.form == StateMember::Form::kPerRun;
    bytes += is_list ? 4 * kDim : member.form == StateMember::Form::kInteger ? 8 : 4;
  }
  return bytes;
}

std::string RandomPayload(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string payload(size, '\0');
  for (char& byte : payload) byte = static_cast<char>(random());
  return payload;
}

const std::byte* BytesOf(const std::string& text) { return reinterpret_cast<const std::byte*>(text.data()); }

struct Decoded {
  bool parsed;
  int64_t key = -77;
  uint32_t time = 77;
  std::string payload;
};

Decoded Decode(const EntryDumpCodec& codec, const std::string& record) {
  Decoded decoded;
  decoded.payload.assign(codec.payload_bytes(), '\x11');
  decoded.parsed =
      codec.Decode(record, &decoded.key, &decoded.time, reinterpret_cast<std::byte*>(decoded.payload.data()));
  return decoded;
}

TEST(EntryDump, EveryOptimizerRoundTripsAloneAndBesideOthers) {
  std::vector<DumpSegment> all;
  int all_state = 0;
  for (const RowOptimizerKind& kind : RowOptimizerKinds()) {
    const int state_bytes = StateBytesOf(kind);
    all.push_back({kDim, std::string(kind.name), state_bytes});
    all_state += state_bytes;
    const EntryDumpCodec codec({all.back()}, std::string(static_cast<size_t>(state_bytes), '\x22'));
    const std::string payload = RandomPayload(codec.payload_bytes(), 501);
    std::string record;
    codec.Encode(-5, 4000000000u, BytesOf(payload), &record);
    const Decoded decoded = Decode(codec, record);
    ASSERT_TRUE(decoded.parsed) << kind.name;
    EXPECT_EQ(decoded.key, -5);
    EXPECT_EQ(decoded.time, 4000000000u);
    EXPECT_EQ(decoded.payload, payload) << kind.name;
  }
  const EntryDumpCodec codec(all, std::string(static_cast<size_t>(all_state), '\0'));
  const std::string payload = RandomPayload(codec.payload_bytes(), 502);
  for (const int64_t key : {std::numeric_limits<int64_t>::min(), int64_t{0}, std::numeric_limits<int64_t>::max()}) {
    std::string record;
    codec.Encode(key, 0, BytesOf(payload), &record);
    const Decoded decoded = Decode(codec, record);
    ASSERT_TRUE(decoded.parsed);
    EXPECT_EQ(decoded.key, key);
    EXPECT_EQ(decoded.time, 0u);
    EXPECT_EQ(decoded.payload, payload);
  }
}

TEST(EntryDump, BytesAreThoseOfTheMessage) {
  const EntryDumpCodec codec({{1, "ftrl", 8}}, std::string(8, '\0'));
  const float payload[3] = {1.0f, 2.0f, 0.5f};  // weight, norm, zero
  std::string record;
  codec.Encode(7, 300, reinterpret_cast<const std::byte*>(payload), &record);
  const char expected[] =
      "\x09\x07\0\0\0\0\0\0\0"        // id
      "\x15\0\0\x80\x3f"              // num: 1.0
      "\x1a\x0e\x0a\x0c\x1a\x0a"      // opt, dump, ftrl
      "\x0d\0\0\0\x3f\x15\0\0\0\x40"  // zero 0.5, norm 2.0
      "\x20\xac\x02";                 // last_update_ts_sec
  EXPECT_EQ(record, std::string(expected, sizeof(expected) - 1));
  codec.EncodeWithoutId(300, reinterpret_cast<const std::byte*>(payload), &record);
  EXPECT_EQ(record, std::string(expected + 9, sizeof(expected) - 10));
}

TEST(EntryDump, MissingOptimizerOrMembersKeepTheInitialState) {
  const EntryDumpCodec codec({{1, "adam", 16}}, "0123456789abcdef");
  const Decoded bare = Decode(codec, std::string("\x15\0\0\x80\x3f", 5));
  ASSERT_TRUE(bare.parsed);
  EXPECT_EQ(bare.key, 0);
  EXPECT_EQ(bare.time, 0u);
  EXPECT_EQ(bare.payload.substr(4), "0123456789abcdef");
  // Only beta2_power (field 4) given: it goes to its own offset, after beta1_power.
  const Decoded partial = Decode(codec, std::string("\x15\0\0\x80\x3f\x1a\x09\x0a\x07\x3a\x05\x25"
                                                    "WXYZ",
                                                    16));
  ASSERT_TRUE(partial.parsed);
  EXPECT_EQ(partial.payload.substr(4), "0123456789abWXYZ");
}

TEST(EntryDump, PackedFloatsAreReadToo) {
  const EntryDumpCodec codec({{2, "adagrad", 8}}, std::string(8, '\0'));
  const Decoded decoded = Decode(codec, std::string("\x12\x08"
                                                    "aaaabbbb"
                                                    "\x1a\x0e\x0a\x0c\x0a\x0a\x0a\x08"
                                                    "ccccdddd",
                                                    26));
  ASSERT_TRUE(decoded.parsed);
  EXPECT_EQ(decoded.payload, "aaaabbbbccccdddd");
}

std::string Reason(const EntryDumpCodec& codec, const std::string& record) {
  try {
    return Decode(codec, record).parsed ? "parsed" : "not a message";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
}

TEST(EntryDump, RecordsOfAnotherTableAreRefusedWithTheReason) {
  const EntryDumpCodec adagrad({{2, "adagrad", 8}}, std::string(8, '\0'));
  const EntryDumpCodec adam({{2, "adam", 24}}, std::string(24, '\0'));
  const EntryDumpCodec wide({{3, "adagrad", 12}}, std::string(12, '\0'));
  const EntryDumpCodec two({{1, "sgd", 0}, {1, "sgd", 0}}, "");
  const EntryDumpCodec compressed({{2, "adagrad", 4}}, std::string(4, '\0'));
  std::string record;
  adam.Encode(9, 1, BytesOf(RandomPayload(32, 503)), &record);
  EXPECT_EQ(Reason(adagrad, record), "segment 0: optimizer dump is 'adam', the table has 'adagrad'");
  adagrad.Encode(9, 1, BytesOf(RandomPayload(16, 503)), &record);
  EXPECT_NE(Reason(wide, record), "parsed");
  EXPECT_EQ(Reason(compressed, record), "segment 0: optimizer 'adagrad' dumps 2 values, the table has 1");
  EXPECT_EQ(Reason(two, record), "segment 0: optimizer dump is 'adagrad', the table has 'sgd'");
  EXPECT_EQ(Reason(adagrad, std::string("\x15\0\0\x80\x3f", 5)), "id 0: 1 weights, the table has 2");
  EXPECT_EQ(Reason(two, std::string("\x15zzzz\x15zzzz\x1a\x04\x0a\x02\x12\0", 16)),
            "id 0: 1 optimizer dumps, the table has 2");
  EXPECT_EQ(Reason(two, std::string("\x15zzzz\x15zzzz\x20\x80\x80\x80\x80\x10", 16)),
            "id 0: time 4294967296 does not fit into 32 bits");
  EXPECT_EQ(Reason(adagrad, "foreign bytes"), "not a message");
}

TEST(EntryDump, StateThatHasNoPlaceInAMessageIsRefused) {
  const std::vector<std::pair<DumpSegment, std::string>> cases = {
      {{2, "newton", 8}, "optimizer 'newton' has no EntryDump message"},
      {{2, "newton", 0}, "optimizer 'newton' has no EntryDump message"},
      {{2, "moving_average", 8}, "optimizer 'moving_average' has no EntryDump message"},
      {{2, "sgd", 4}, "optimizer 'sgd': 4 bytes of state do not fit"},
      {{2, "adam", 28}, "optimizer 'adam': 28 bytes of state do not fit"},
      {{2, "momentum", 4}, "optimizer 'momentum': 4 bytes of state do not fit"},
      {{2, "dynamic_wd_adagrad", 4}, "optimizer 'dynamic_wd_adagrad': 4 bytes of state do not fit"}};
  for (const auto& [segment, reason] : cases) {
    const std::string state(static_cast<size_t>(segment.state_bytes), '\0');
    try {
      const EntryDumpCodec codec({segment}, state);
      ADD_FAILURE() << segment.optimizer << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), reason);
    }
    EXPECT_EQ(EntryDumpCodec({segment}, state, true).dim(), 2) << "a serving table passes over the optimizer";
  }
}

TEST(EntryDump, RandomBytesAreRefusedOrReadWithoutHarm) {
  const EntryDumpCodec codec({{2, "adam", 24}, {1, "batch_softmax", 8}}, std::string(32, '\0'));
  std::string good;
  codec.Encode(9, 1, BytesOf(RandomPayload(codec.payload_bytes(), 504)), &good);
  std::mt19937 random(505);
  for (int trial = 0; trial < 30000; ++trial) {
    std::string bad = good;
    for (uint32_t i = random() % 4; i < 4; ++i) bad[random() % bad.size()] = static_cast<char>(random());
    if (trial % 3 == 0) bad.resize(random() % bad.size());
    ASSERT_FALSE(Reason(codec, bad).empty());
  }
}

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

// Rows of tables 0 and 1, bucket by bucket as in a cut.
std::vector<std::string> TwoTables(const std::vector<const EntryDumpCodec*>& codecs) {
  std::map<uint32_t, std::vector<int64_t>> by_bucket;
  for (int64_t key = -500; key < 500; ++key) by_bucket[BucketOf(key)].push_back(key);
  std::vector<std::string> blocks;
  for (const auto& [bucket, keys] : by_bucket) {
    blocks.push_back(BuildFilterBlock(bucket, 1, "filter"));
    for (uint32_t table = 0; table < 2; ++table) {
      RowBlockHeader header;
      header.table = table;
      header.bucket = bucket;
      header.payload_bytes_per_row = static_cast<uint32_t>(codecs[table]->payload_bytes());
      RowBlockBuilder builder(header, static_cast<uint32_t>(keys.size()));
      for (const int64_t key : keys) {
        const std::string payload = RandomPayload(header.payload_bytes_per_row, static_cast<uint64_t>(key) * 2 + table);
        std::memcpy(builder.Add(key, static_cast<uint32_t>(key + 500)), payload.data(), payload.size());
      }
      blocks.push_back(builder.Finish());
    }
  }
  return blocks;
}

TEST(EntryDumpFile, BlocksOfTwoTablesGoOutTableByTableAndComeBack) {
  const EntryDumpCodec first({{2, "adagrad", 8}}, std::string(8, '\0'));
  const EntryDumpCodec second({{1, "sgd", 0}}, "");
  const std::string path = fs::temp_directory_path() / ("monolith-dump-" + std::to_string(::getpid()));
  TransferProgress progress;
  for (const RecordCompression compression : {RecordCompression::kNone, RecordCompression::kSnappy}) {
    ListSource source(TwoTables({&first, &second}));
    const auto entries =
        WriteEntryDumpFile(&source, {&first, &second}, {path, path + "-tmp-1", compression}, &progress);
    EXPECT_EQ(entries, (std::vector<uint64_t>{1000, 1000}));
    EXPECT_FALSE(fs::exists(path + "-tmp-1"));
    EXPECT_FALSE(fs::exists(path + "-tmp-1-table-1"));
    std::vector<DumpSection> sections = {{&first, {}, 1000}, {&second, {}, 1000}};
    sections[1].header.table = 1;
    uint64_t rows = 0;
    const auto sink = [&](const std::vector<std::string>& blocks) {
      for (const std::string& block : blocks) {
        const RowBlockView view(block);
        for (uint32_t row = 0; row < view.count(); ++row) {
          const int64_t key = view.key(row);
          const uint32_t size = view.header().payload_bytes_per_row;
          const std::string payload = RandomPayload(size, static_cast<uint64_t>(key) * 2 + view.header().table);
          ASSERT_EQ(std::memcmp(view.payload(row), payload.data(), size), 0);
          ASSERT_EQ(view.time(row), static_cast<uint32_t>(key + 500));
          ASSERT_EQ(view.header().bucket, BucketOf(key));
          ++rows;
        }
      }
    };
    EXPECT_EQ(ReadEntryDumpFile(path, compression, sections, sink, &progress), 2000u);
    EXPECT_EQ(rows, 2000u);
    sections[0].codec = nullptr;
    EXPECT_EQ(ReadEntryDumpFile(path, compression, sections, {}, &progress), 1000u);
    sections[1].entries = 999;
    EXPECT_THROW(ReadEntryDumpFile(path, compression, sections, {}, &progress), Error);
    sections[1].entries = 1001;
    EXPECT_THROW(ReadEntryDumpFile(path, compression, sections, {}, &progress), Error);
    fs::remove(path);
  }
}

}  // namespace
}  // namespace monolith
