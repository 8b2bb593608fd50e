#include "data/batch_parser.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

#include "base/error.h"
#include "data/cell_values.h"
#include "format/proto_wire.h"

namespace monolith {
namespace {

std::string Bytes(uint32_t field, const std::string& body) {
  std::string bytes;
  PutVarint(TagOf(field, WireType::kBytes), &bytes);
  PutVarint(body.size(), &bytes);
  return bytes + body;
}

std::string Varint(uint32_t field, uint64_t number) {
  std::string bytes;
  PutVarint(TagOf(field, WireType::kVarint), &bytes);
  PutVarint(number, &bytes);
  return bytes;
}

template <typename Number>
std::string Packed(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

std::string Ids(const std::vector<uint64_t>& ids) { return Bytes(2, Bytes(1, Packed(ids))); }
std::string Floats(const std::vector<float>& floats) { return Bytes(3, Bytes(1, Packed(floats))); }
std::string Named(const std::string& name, const std::string& feature) {
  return Bytes(1, Bytes(1, name) + Bytes(2, feature));
}

std::vector<ColumnSpec> Columns() {
  return {{"user", ColumnKind::kIds},       {"lists", ColumnKind::kNestedIds}, {"dense", ColumnKind::kDenseFloats, 2},
          {"label", ColumnKind::kLabel},    {"weight", ColumnKind::kWeight},   {"uid", ColumnKind::kLineId},
          {"actions", ColumnKind::kLineId}, {"cid", ColumnKind::kLineId},      {"codes", ColumnKind::kInts}};
}

std::string Sample() {
  const std::string lists = Bytes(7, Bytes(1, Bytes(1, Packed<uint64_t>({4, 5}))) + Bytes(1, ""));
  const std::string codes = Bytes(5, Bytes(1, "\x01\x80\x01\x02"));
  const std::string line =
      Bytes(6, std::string("\x03\x04", 2)) + Bytes(48, "abc") + std::string("\x11\x07\0\0\0\0\0\0\0", 9);
  return Named("user", Ids({1, 2, 3})) + Named("lists", lists) + Named("dense", Floats({0.5f})) +
         Named("codes", codes) + Named("nobody asks", Ids({9})) + Bytes(100, line) + Bytes(101, Packed<float>({1.0f}));
}

TEST(BatchParser, PutsValuesWhereTheirColumnsSay) {
  const Schema schema(SampleFormat::kExample, Columns());
  const std::string sample = Sample();
  const std::vector<std::string_view> records{sample, "", sample};
  const ParsedBatch batch = ParseBatch(schema, records, {});
  EXPECT_EQ(batch.rows, 3);
  const std::vector<int64_t> user{1, 2, 3, 1, 2, 3}, lists{4, 5, 4, 5}, lengths{2, 0, 2, 0}, actions{3, 4, 3, 4},
      codes{1, 128, 2, 1, 128, 2};
  std::vector<int64_t> expected;
  for (const auto& part : {user, lists, lengths, actions, codes})
    expected.insert(expected.end(), part.begin(), part.end());
  EXPECT_EQ(batch.ragged_ints, expected);
  EXPECT_EQ(batch.ragged_int_splits,
            (std::vector<int64_t>{0, 3, 3, 6, 0, 2, 2, 4, 0, 2, 2, 4, 0, 2, 2, 4, 0, 3, 3, 6}));
  EXPECT_EQ(batch.dense_floats,
            (std::vector<float>{0.5f, 0, 0, 0, 0.5f, 0, 1.0f, kInvalidLabel, 1.0f, 1.0f, 1.0f, 1.0f}));
  EXPECT_EQ(batch.dense_ints, (std::vector<int64_t>{7, 0, 7}));
  EXPECT_EQ(batch.texts, (std::vector<std::vector<std::string>>{{"abc", "", "abc"}}));
}

TEST(BatchParser, LeavesOutOrRefusesBadRecords) {
  const Schema schema(SampleFormat::kExample, Columns());
  const std::string wrong = Named("user", Floats({1.0f}));
  const std::string sample = Sample();
  const std::vector<std::string_view> records{sample, wrong, sample, "\x0a\x7f"};
  EXPECT_THROW(ParseBatch(schema, records, {}), Error);
  const ParsedBatch batch = ParseBatch(schema, records, {.skip_bad = true});
  EXPECT_EQ(batch.rows, 2);
  EXPECT_EQ(batch.bad_records, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(batch.problems[0], "feature 'user' must hold fid_v1_list or fid_v2_list, got float_list");
}

TEST(BatchParser, SharedColumnsStandInEveryRow) {
  const Schema schema(SampleFormat::kExampleBatch, {{"user", ColumnKind::kIds}});
  const std::string shared = Bytes(1, Bytes(1, "user") + Bytes(2, Ids({7, 8})) + Varint(3, 1)) + Varint(3, 3);
  const std::vector<std::string_view> records{shared};
  EXPECT_EQ(ParseBatch(schema, records, {}).ragged_ints, (std::vector<int64_t>{7, 8, 7, 8, 7, 8}));
}

std::string SharedList(const std::string& feature) {
  return Bytes(1, Bytes(1, "user") + Bytes(2, feature) + Varint(3, 1));
}

TEST(BatchParser, ListsThatStandTwiceAreJoinedInEveryRow) {
  const Schema schema(SampleFormat::kExampleBatch, {{"user", ColumnKind::kInts}});
  const auto numbers = [](size_t count, uint64_t value) {
    std::string list;
    for (size_t i = 0; i < count; ++i) list += Varint(1, value);
    return Bytes(5, list);
  };
  const std::string each =
      Bytes(1, Bytes(1, "user") + Bytes(2, numbers(1, 3)) + Bytes(2, numbers(1, 4)) + Bytes(2, numbers(1, 5)));
  // A list that is not packed is copied, and all rows share the copy: no row may extend it.
  for (size_t count = 1; count < 64; ++count) {
    const std::string shared = SharedList(numbers(count, 1)) + SharedList(numbers(1, 2));
    const std::string first = shared + each + Varint(3, 3), last = each + shared + Varint(3, 3);
    const std::vector<std::string_view> records{first, last};
    std::vector<int64_t> expected;
    for (int64_t row = 0; row < 6; ++row) {
      if (row >= 3) expected.push_back(row);
      expected.insert(expected.end(), count, 1);
      expected.push_back(2);
      if (row < 3) expected.push_back(row + 3);
    }
    EXPECT_EQ(ParseBatch(schema, records, {}).ragged_ints, expected) << count;
  }
}

TEST(BatchParser, ARecordThatSwellsIsABadOne) {
  const Schema schema(SampleFormat::kExampleBatch, {{"user", ColumnKind::kIds}});
  const std::string good = SharedList(Ids({7, 8})) + Varint(3, 3);
  const std::string swollen = SharedList(Ids(std::vector<uint64_t>(100))) + Varint(3, 100);
  const std::string joined = Bytes(1, Bytes(1, "user") + Bytes(2, Ids({1})) + Bytes(2, Ids({2}))) +
                             SharedList(Ids(std::vector<uint64_t>(5000))) + Varint(3, 2);
  const std::string rows = Varint(3, 5000);
  const std::vector<std::string_view> records{swollen, good, joined, rows};
  const ParsedBatch batch = ParseBatch(schema, records, {.skip_bad = true, .max_parsed_bytes = 50'000});
  EXPECT_EQ(batch.ragged_ints, (std::vector<int64_t>{7, 8, 7, 8, 7, 8}));
  EXPECT_EQ(batch.bad_records, (std::vector<int64_t>{0, 2, 3}));
  EXPECT_EQ(
      batch.problems[0],
      "its 100 rows would become more than 50000 bytes of the batch; raise max_parsed_bytes if the record is meant");
  EXPECT_NE(batch.problems[1].find("joined from lists of more than the 50000 bytes"), std::string::npos);
  EXPECT_EQ(ParseBatch(schema, records, {}).rows, 100 + 3 + 2 + 5000);
}

TEST(BatchParser, AllThatOneRecordBecomesIsCounted) {
  // Cells of 16 bytes and splits of 8 for each list; 8 for an id, a length and a dense number, 4 for a real.
  struct Case {
    ColumnKind kind;
    std::string feature;
    int64_t bytes;
  };
  const std::string lists = Bytes(7, Bytes(1, Bytes(1, Packed<uint64_t>({4, 5}))) + Bytes(1, ""));
  const std::vector<Case> cases{{ColumnKind::kIds, Ids({1, 2}), 16 + 8 + 16},
                                {ColumnKind::kFloats, Floats({1.0f, 2.0f, 3.0f}), 16 + 8 + 12},
                                {ColumnKind::kNestedIds, lists, 16 + 16 + 16 + 16},
                                {ColumnKind::kDenseFloats, Floats({1.0f}), 16 + 8},
                                {ColumnKind::kFirstBytes, Bytes(6, Bytes(1, "abcd")), 16 + sizeof(std::string) + 4}};
  for (const auto& [kind, feature, bytes] : cases) {
    const Schema schema(SampleFormat::kExampleBatch, {{"user", kind}});
    const std::string record = SharedList(feature) + Varint(3, 10);
    const std::vector<std::string_view> records{record};
    EXPECT_NO_THROW(ParseBatch(schema, records, {.max_parsed_bytes = 10 * bytes}));
    EXPECT_THROW(ParseBatch(schema, records, {.max_parsed_bytes = 10 * bytes - 1}), Error) << static_cast<int>(kind);
  }
}

TEST(BatchParser, ALineIdThatAllRowsShareIsThatOfEveryRow) {
  const Schema schema(SampleFormat::kExampleBatch, {{"uid", ColumnKind::kLineId}, {"actions", ColumnKind::kLineId}});
  const std::string line = Bytes(6, std::string("\x03\x04", 2)) + std::string("\x11\x07\0\0\0\0\0\0\0", 9);
  const std::string record =
      Bytes(1, Bytes(1, "__LINE_ID__") + Bytes(2, Bytes(6, Bytes(1, line))) + Varint(3, 1)) + Varint(3, 3);
  const std::vector<std::string_view> records{record};
  const ParsedBatch batch = ParseBatch(schema, records, {});
  EXPECT_EQ(batch.dense_ints, (std::vector<int64_t>{7, 7, 7}));
  EXPECT_EQ(batch.ragged_ints, (std::vector<int64_t>{3, 4, 3, 4, 3, 4}));
}

// Under the sanitizers this detects reads out of bounds, overflow and leaks.
TEST(BatchParser, SurvivesAnyBytes) {
  std::mt19937 random(302);
  const std::string seed = Sample();
  for (const SampleFormat format :
       {SampleFormat::kExample, SampleFormat::kExampleBatch, SampleFormat::kInstance, SampleFormat::kTfExample}) {
    std::vector<ColumnSpec> columns = Columns();
    columns.push_back({"fc_slot_0", ColumnKind::kIds});
    if (format == SampleFormat::kTfExample)
      columns = {{"user", ColumnKind::kIds, 1, 3}, {"dense", ColumnKind::kFloats}};
    const Schema schema(format, columns);
    for (int round = 0; round < 5000; ++round) {
      std::string record = random() % 4 == 0 ? std::string(random() % 50, '\0') : seed;
      for (uint32_t i = random() % 6; i > 0 && !record.empty(); --i)
        record[random() % record.size()] = static_cast<char>(random());
      if (!record.empty() && random() % 3 == 0) record.resize(random() % record.size());
      // A copy of exactly its size, so that a read one byte too far is detected.
      const std::vector<char> exact(record.begin(), record.end());
      const std::vector<std::string_view> records{{exact.data(), exact.size()}, {exact.data(), exact.size() / 2}};
      try {
        const ParsedBatch batch = ParseBatch(schema, records, {.skip_bad = true});
        ASSERT_LE(batch.bad_records.size(), 2u);
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), Code::kResourceExhausted);
      }
    }
  }
}

}  // namespace
}  // namespace monolith
