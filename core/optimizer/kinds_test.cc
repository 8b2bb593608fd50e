#include "optimizer/kinds.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>

namespace monolith {
namespace {

TEST(RowOptimizerKinds, NamesAndNumbersOfMessagesAreTakenOnce) {
  std::set<std::string_view> names;
  std::set<uint32_t> messages;
  for (const RowOptimizerKind& kind : RowOptimizerKinds()) {
    EXPECT_TRUE(names.insert(kind.name).second) << kind.name;
    EXPECT_TRUE(kind.dump.field == 0 || messages.insert(kind.dump.field).second) << kind.name;
    std::set<uint32_t> fields;
    for (const StateMember& member : kind.dump.members) {
      EXPECT_TRUE(fields.insert(member.dump_field).second) << kind.name;
      EXPECT_GE(member.dump_field, 1u) << kind.name;
    }
    EXPECT_TRUE(kind.dump.field != 0 || fields.empty()) << kind.name << " has members and no message";
  }
}

TEST(RowOptimizerKinds, AreFoundByNameOrNotAtAll) {
  for (const RowOptimizerKind& kind : RowOptimizerKinds()) {
    EXPECT_EQ(FindRowOptimizerKind(kind.name), &kind);
    EXPECT_EQ(&RowOptimizerKindNamed(kind.name), &kind);
  }
  EXPECT_EQ(FindRowOptimizerKind(""), nullptr);
  EXPECT_EQ(FindRowOptimizerKind("Sgd"), nullptr);
  try {
    RowOptimizerKindNamed("adagrda");
    ADD_FAILURE() << "adagrda was found";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    for (const RowOptimizerKind& kind : RowOptimizerKinds()) {
      EXPECT_NE(std::string_view(error.what()).find(kind.name), std::string_view::npos) << error.what();
    }
  }
}

TEST(RowOptimizerKinds, AnAccumulatorOfSeveralWeightsTiesThemTogether) {
  for (const std::string name : {"adagrad", "dynamic_wd_adagrad"}) {
    const RowOptimizerKind* kind = FindRowOptimizerKind(name);
    EXPECT_TRUE(kind->is_elementwise(Params({{"hessian_compression_times", 1}}))) << name;
    EXPECT_FALSE(kind->is_elementwise(Params({{"hessian_compression_times", 2}}))) << name;
  }
}

}  // namespace
}  // namespace monolith
