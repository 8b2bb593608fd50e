#include "ps/row_client.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "ps/rows_for_test.h"

namespace monolith::ps {
namespace {

std::vector<float> Some(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

class RowServersTest : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Servers, RowServersTest, testing::Values(1, 3, 5));

// The rows of all servers.
Content RowsOf(const RowCluster& cluster) {
  Content whole;
  for (const auto& server : cluster.servers) whole.rows.merge(monolith::RowsOf(*server->group).rows);
  return whole;
}

TEST_P(RowServersTest, TrainingOverServersGivesTheRowsOfOneGroup) {
  const GroupOptions options{.sgd_min_count = 3};
  RowCluster cluster(GetParam(), options);
  const auto local = MakeTestGroup(options);
  const int64_t incarnation = local->Join(4).incarnation;
  Trainer trainer(*cluster.client, *cluster.shell, 4);
  std::mt19937_64 random(1);
  const std::vector<int64_t> known = SpreadIds(3000);
  for (int64_t seq = 0; seq < 12; ++seq) {
    const std::vector<int64_t> ids = Draw(&random, seq == 5 ? 0 : 2000, known);
    const uint64_t ticket = seq % 3 == 0 ? kNoTicket : 100 + seq;
    Plan plan = trainer.NewPlan(ids);
    std::vector<float> expected(static_cast<size_t>(local->NumValues(plan)));
    local->Read(plan, expected, seq);
    ASSERT_EQ(trainer.Pull(plan, ticket, seq - 1), expected);
    const std::vector<float> gradients = Some(expected.size(), seq);
    const Applied applied = trainer.Push(plan, gradients, seq, seq - 1, ticket);
    const std::vector<float> rates = {0.5f, 1.0f};
    const std::vector<int64_t> times = {kStartTime};
    const monolith::Push push{incarnation, seq, {4, seq, "at " + std::to_string(seq), 1000 * seq}, seq - 1};
    Update update;
    update.gradients = gradients;
    update.per_unique = true;
    update.learning_rates = rates;
    update.times = times;
    const Applied alone = local->Apply(plan, update, {&push, 1});
    EXPECT_EQ(applied.updated, alone.updated);
    EXPECT_EQ(applied.inserted, alone.inserted);
    EXPECT_EQ(applied.filtered, alone.filtered);
    EXPECT_FALSE(applied.duplicate);
  }
  EXPECT_EQ(RowsOf(cluster).rows, monolith::RowsOf(*local).rows);
  for (const auto& server : cluster.servers) {
    EXPECT_EQ(server->group->Stamps(), local->Stamps()) << "also of those that had no id of a batch";
    EXPECT_EQ(server->host->num_kept(), 0u);
  }
}

TEST_P(RowServersTest, APushIsAppliedOnceHoweverOftenItComes) {
  RowCluster cluster(GetParam());
  Trainer trainer(*cluster.client, *cluster.shell, 0);
  const Plan plan = trainer.NewPlan(SpreadIds(500));
  const std::vector<float> gradients(static_cast<size_t>(cluster.shell->NumValues(plan)), 1.0f);
  EXPECT_FALSE(trainer.Push(plan, gradients, 0, kNothingApplied).duplicate);
  const Content once = RowsOf(cluster);
  for (int again = 0; again < 3; ++again) EXPECT_TRUE(trainer.Push(plan, gradients, 0, kNothingApplied).duplicate);
  EXPECT_EQ(RowsOf(cluster).rows, once.rows);
}

TEST_P(RowServersTest, AnswersSayHowManyBatchesOfOthersThereAre) {
  RowCluster cluster(GetParam());
  Trainer first(*cluster.client, *cluster.shell, 0), second(*cluster.client, *cluster.shell, 1);
  const Plan plan = first.NewPlan(SpreadIds(50));
  const std::vector<float> gradients(static_cast<size_t>(cluster.shell->NumValues(plan)), 1.0f);
  const auto others_of = [&](Trainer& trainer, int64_t seq, int64_t previous) {
    const auto push = trainer.NewPush(plan, gradients, seq, previous);
    push->Begin(kEndsHangs);
    return push->Finish(kEndsHangs).steps_of_others;
  };
  EXPECT_EQ(others_of(first, 0, kNothingApplied), 0);
  EXPECT_EQ(others_of(second, 4, kNothingApplied), 1);
  EXPECT_EQ(others_of(first, 1, 0), 5);
  EXPECT_EQ(others_of(first, 1, 0), 5);  // of a repeated one, too
  for (const auto& server : cluster.servers) EXPECT_EQ(server->group->Steps(), 7);
  for (const JoinAnswer& each : cluster.client->Join(1, kEndsHangs)) EXPECT_EQ(each.steps_of_others, 2);
  cluster.servers.front()->group->Resume(std::vector<BatchStamp>{{0, 1, "", 0}, {7, 99, "", 0}});
  Trainer again(*cluster.client, *cluster.shell, 0);
  EXPECT_EQ(others_of(again, 2, 1), 100);  // by server 0, whatever the others have
}

TEST_P(RowServersTest, APushWhosePlanIsGoneIsSentWithItsIdsAndThoseBehindItFollow) {
  RowCluster cluster(GetParam());
  Trainer trainer(*cluster.client, *cluster.shell, 0);
  const Plan plan = trainer.NewPlan(SpreadIds(500));
  const std::vector<float> gradients(static_cast<size_t>(cluster.shell->NumValues(plan)), 1.0f);
  trainer.Pull(plan, 1);
  trainer.Pull(plan, 2);
  cluster.client->Drop(0, {1});
  const auto first = trainer.NewPush(plan, gradients, 0, kNothingApplied, 1);
  const auto second = trainer.NewPush(plan, gradients, 1, 0, 2);
  first->Begin(kEndsHangs);
  second->Begin(kEndsHangs);  // in flight before the failure of the first is known
  EXPECT_GT(first->Finish(kEndsHangs).applied.updated, 0);
  EXPECT_GT(second->Finish(kEndsHangs).applied.updated, 0);
  for (const auto& server : cluster.servers) EXPECT_EQ(server->group->LastApplied(0), 1);
}

TEST_P(RowServersTest, APushThatNamesOneThatNobodyHasIsRefused) {
  RowCluster cluster(GetParam());
  Trainer trainer(*cluster.client, *cluster.shell, 0);
  const Plan plan = trainer.NewPlan({1, 2, 3});
  const std::vector<float> gradients(static_cast<size_t>(cluster.shell->NumValues(plan)), 1.0f);
  trainer.Push(plan, gradients, 5, kNothingApplied);
  try {
    trainer.Push(plan, gradients, 9, 7);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kFailedPrecondition);
    EXPECT_NE(std::string(error.what()).find("is 5"), std::string::npos) << error.what();
  }
  EXPECT_THROW(trainer.Push(plan, gradients, 9, 3), Error);  // and one that is older than the server's last
  trainer.Pull(plan, kNoTicket, 6);
  EXPECT_TRUE(trainer.was_lacking);
}

TEST_P(RowServersTest, AnIncarnationEndsWithTheNextOne) {
  RowCluster cluster(GetParam());
  Trainer first(*cluster.client, *cluster.shell, 0);
  const Plan plan = first.NewPlan({1, 2, 3});
  const std::vector<float> gradients(static_cast<size_t>(cluster.shell->NumValues(plan)), 1.0f);
  first.Pull(plan, 1);
  Trainer second(*cluster.client, *cluster.shell, 0);
  for (const auto& server : cluster.servers) EXPECT_EQ(server->host->num_kept(), 0u);
  EXPECT_THROW(first.Pull(plan, 2), Error);
  EXPECT_THROW(first.Push(plan, gradients, 0, kNothingApplied), Error);
  EXPECT_EQ(second.Push(plan, gradients, 0, kNothingApplied).inserted, 3);
}

TEST_P(RowServersTest, PushesWaitAtAHeldGateAndGoOn) {
  RowCluster cluster(GetParam());
  Trainer trainer(*cluster.client, *cluster.shell, 0);
  const Plan plan = trainer.NewPlan(SpreadIds(100));
  const std::vector<float> gradients(static_cast<size_t>(cluster.shell->NumValues(plan)), 1.0f);
  trainer.Push(plan, gradients, 0, kNothingApplied);
  for (const auto& server : cluster.servers) ASSERT_TRUE(server->host->gate().Hold(kEndsHangs));
  const auto push = trainer.NewPush(plan, gradients, 1, 0);
  push->Begin(kEndsHangs);
  RowClientOptions others;
  const auto another = cluster.NewClient(others);
  Trainer reader(*another, *cluster.shell, 1);
  reader.Pull(plan, kNoTicket);  // readers are not blocked
  EXPECT_FALSE(push->is_done());
  for (const auto& server : cluster.servers) EXPECT_EQ(server->group->LastApplied(0), 0);
  for (const auto& server : cluster.servers) server->host->gate().Allow({{0, 1}});
  EXPECT_EQ(push->Finish(kEndsHangs).applied.updated, 100);
  for (const auto& server : cluster.servers) server->host->gate().Open();
}

TEST_P(RowServersTest, HalvesTravelWithTheErrorOfHalves) {
  RowCluster cluster(GetParam());
  RowClientOptions options;
  options.half = true;
  const auto client = cluster.NewClient(options);
  Trainer trainer(*client, *cluster.shell, 0);
  const Plan plan = trainer.NewPlan(SpreadIds(400));
  std::vector<float> gradients = Some(static_cast<size_t>(cluster.shell->NumValues(plan)), 3);
  gradients[0] = 1e30f;  // stays finite
  trainer.Push(plan, gradients, 0, kNothingApplied);
  Trainer exact(*cluster.client, *cluster.shell, 1);
  const std::vector<float> rows = exact.Pull(plan, kNoTicket), rounded = trainer.Pull(plan, kNoTicket);
  for (size_t i = 0; i < rows.size(); ++i) {
    ASSERT_TRUE(std::isfinite(rows[i]));
    EXPECT_LE(std::abs(rounded[i] - rows[i]), std::abs(rows[i]) * 0x1p-11f + 0x1p-25f);
  }
}

TEST(RowServersAloneTest, ManyWorkersPushAtOnceAndEveryGradientCountsOnce) {
  constexpr int kWorkers = 4, kSteps = 40;
  RowCluster cluster(3);
  const std::vector<int64_t> ids = SpreadIds(300);
  RunThreads(kWorkers, [&](int number) {
    const auto client = cluster.NewClient();
    Trainer trainer(*client, *cluster.shell, number);
    const Plan plan = trainer.NewPlan(ids);
    const std::vector<float> gradients(static_cast<size_t>(cluster.shell->NumValues(plan)), 1.0f);
    std::unique_ptr<RowPush> before;
    for (int64_t seq = 0; seq < kSteps; ++seq) {
      trainer.Pull(plan, seq % 2 == 0 ? 1 + seq : kNoTicket);
      auto push = trainer.NewPush(plan, gradients, seq, seq - 1, seq % 2 == 0 ? 1 + seq : kNoTicket);
      push->Begin(kEndsHangs);
      if (before != nullptr) before->Finish(kEndsHangs);
      before = std::move(push);
      if (number == 0 && seq % 10 == 5) {
        for (const auto& server : cluster.servers) server->host->gate().Hold(0.05);
        for (const auto& server : cluster.servers) server->host->gate().Open();
      }
    }
    before->Finish(kEndsHangs);
  });
  const std::vector<int64_t> sgd(ids.begin() + 150, ids.end());
  for (const auto& server : cluster.servers) {
    std::vector<int64_t> own;
    for (const int64_t id : sgd) {
      if (BucketOf(id) >= server->host->buckets().begin && BucketOf(id) < server->host->buckets().end)
        own.push_back(id);
    }
    for (const float weight : LookupWhole(*server->group, 1, own)) EXPECT_EQ(weight, -kWorkers * kSteps);
  }
}

TEST(RowServersAloneTest, AServerThatIsBackAtItsPortIsSentTheRest) {
  RowCluster cluster(2);
  Trainer trainer(*cluster.client, *cluster.shell, 0);
  const Plan plan = trainer.NewPlan(SpreadIds(100));
  const std::vector<float> gradients(static_cast<size_t>(cluster.shell->NumValues(plan)), 1.0f);
  trainer.Push(plan, gradients, 0, kNothingApplied);
  RowServer& server = *cluster.servers[1];
  const uint16_t port = server.server->port();
  server.server.reset();  // disconnects; the rows stay
  const auto push = trainer.NewPush(plan, gradients, 1, 0);
  push->Begin(kEndsHangs);
  server.Start(port);
  EXPECT_EQ(push->Finish(kEndsHangs).applied.updated, 100);
  for (const auto& each : cluster.servers) EXPECT_EQ(each->group->LastApplied(0), 1);
}

TEST(RowServersAloneTest, AGreetingMustNameTheStoreItsBucketsAndTheAgreement) {
  RowCluster cluster(1);
  const auto refusal = [&](const std::string& words) {
    RowClient client({{"127.0.0.1", cluster.servers[0]->server->port()}}, {words}, Shares(1), *cluster.shell, {});
    try {
      client.Join(0, kEndsHangs);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal(RowWords("test", {0, 1024}, "agreed")), "");
  EXPECT_NE(refusal(RowWords("other", {0, 1024}, "agreed")).find("no store 'other'"), std::string::npos);
  EXPECT_NE(refusal(RowWords("test", {0, 512}, "agreed")).find("0 512"), std::string::npos);
  EXPECT_NE(refusal(RowWords("test", {0, 1024}, "agree")).find("learn otherwise"), std::string::npos);
  EXPECT_NE(refusal("rows\n").find("a line is missing"), std::string::npos);
  EXPECT_NE(refusal("elsewhere").find("only rows"), std::string::npos);
}

TEST(RowServersAloneTest, CallsThatMakeNoSenseAreRefusedAndChangeNothing) {
  RowServer server({0, 1024}, {});
  std::mt19937_64 random(11);
  PushQuestion push;
  push.push = {server.group->Join(0).incarnation, 0, {0, 0, "", 0}, kNothingApplied};
  push.num_rates = 2;
  push.num_times = 1;
  PullQuestion pull;
  pull.ids = {1, 2, true};
  const std::vector<std::pair<uint16_t, std::string>> seeds = {{kJoin, Encode(WhereQuestion{0, 0})},
                                                               {kPull, Encode(pull)},
                                                               {kPush, Encode(push)},
                                                               {kDrop, Encode(DropQuestion{0, {1, 2}})},
                                                               {kWhere, Encode(WhereQuestion{0, 0})},
                                                               {99, ""}};
  int refused = 0;
  for (int round = 0; round < 10'000; ++round) {
    auto [kind, head] = seeds[random() % seeds.size()];
    for (uint64_t changes = random() % 4; changes > 0 && !head.empty(); --changes)
      head[random() % head.size()] = static_cast<char>(random());
    if (random() % 4 == 0) head.resize(random() % (head.size() + 8));
    std::vector<uint8_t> body(random() % 3 == 0 ? 0 : random() % 200);
    for (uint8_t& byte : body) byte = static_cast<uint8_t>(random() % 3 == 0 ? random() : 0);
    try {
      server.host->Call(kind, head, body);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_EQ(server.group->table(0).Size() + server.group->table(1).Size(), 0);
}

TEST(RowServersAloneTest, ClosingWaitsForCallsAndRefusesLaterOnes) {
  RowCluster cluster(1);
  Trainer trainer(*cluster.client, *cluster.shell, 0);
  const Plan plan = trainer.NewPlan({1, 2});
  cluster.servers[0]->service.DropRows("test");
  EXPECT_THROW(trainer.Pull(plan, kNoTicket), Error);
}

}  // namespace
}  // namespace monolith::ps
