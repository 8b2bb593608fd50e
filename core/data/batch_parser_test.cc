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
  const ParsedBatch batch = ParseBatch(schema, records, false);
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
  EXPECT_THROW(ParseBatch(schema, records, false), Error);
  const ParsedBatch batch = ParseBatch(schema, records, true);
  EXPECT_EQ(batch.rows, 2);
  EXPECT_EQ(batch.bad_records, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(batch.problems[0], "feature 'user' must hold fid_v1_list or fid_v2_list, got float_list");
}

TEST(BatchParser, SharedColumnsStandInEveryRow) {
  const Schema schema(SampleFormat::kExampleBatch, {{"user", ColumnKind::kIds}});
  const std::string shared = Bytes(1, Bytes(1, "user") + Bytes(2, Ids({7, 8})) + Varint(3, 1)) + Varint(3, 3);
  const std::vector<std::string_view> records{shared};
  EXPECT_EQ(ParseBatch(schema, records, false).ragged_ints, (std::vector<int64_t>{7, 8, 7, 8, 7, 8}));
}

// Under the sanitizers this looks for reads out of bounds, overflow and leaks.
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
      // A copy of exactly its size, so that one byte too far is seen.
      const std::vector<char> exact(record.begin(), record.end());
      const std::vector<std::string_view> records{{exact.data(), exact.size()}, {exact.data(), exact.size() / 2}};
      try {
        const ParsedBatch batch = ParseBatch(schema, records, true);
        ASSERT_LE(batch.bad_records.size(), 2u);
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), Code::kResourceExhausted);
      }
    }
  }
}

}  // namespace
}  // namespace monolith
