// Ten thousand damaged frames against a server that keeps rows: it answers or disconnects, and serves other clients.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ps/row_messages.h"
#include "ps/service.h"
#include "rpc/conversation_for_test.h"
#include "table/group_for_test.h"

namespace monolith::ps {
namespace {

constexpr int kInputs = 10'000;

struct Message {
  uint16_t kind;
  std::string head, body;
};

template <typename T>
void Append(std::string* body, std::span<const T> values) {
  body->append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

// The messages of a worker in a step, over both tables of the group.
std::vector<Message> GoodMessages(const Group& group, int64_t worker, int64_t incarnation, int64_t seq) {
  const std::vector<int64_t> ids = SpreadIds(20), splits = {0, 10, 20};
  const Plan plan = MakePlan(ids, splits, true);
  const std::vector<CellCount> cells = CellsOf(plan);
  const std::vector<int32_t> counts(20, 1);
  std::string id_bytes;
  Append<int64_t>(&id_bytes, {plan.unique.data(), plan.unique.size()});
  Append<CellCount>(&id_bytes, cells);
  Append<int32_t>(&id_bytes, counts);
  const IdSizes sizes{static_cast<uint32_t>(cells.size()), 20, true};
  PullQuestion pull{.worker = worker, .incarnation = incarnation, .ids = sizes};
  PushQuestion push;
  push.num_rates = 2;
  push.num_times = 1;
  push.ids = sizes;
  push.push = {
      .incarnation = incarnation, .first_seq = seq, .stamp = {.worker = worker, .seq = seq, .position = "here"}};
  push.num_values = static_cast<uint64_t>(group.NumValues(plan));
  std::string push_body = id_bytes;
  Append<float>(&push_body, std::vector<float>{0.5f, 1.0f});
  Append<uint32_t>(&push_body, std::vector<uint32_t>{static_cast<uint32_t>(kStartTime)});
  Append<float>(&push_body, std::vector<float>(push.num_values, 0.25f));
  std::vector<Message> messages = {{kJoin, Encode(WhereQuestion{worker, 0}), ""},
                                   {kPull, Encode(pull), id_bytes},
                                   {kPush, Encode(push), push_body},
                                   {kDrop, Encode(DropQuestion{worker, {5, 6}}), ""},
                                   {kWhere, Encode(WhereQuestion{worker, incarnation}), ""}};
  pull.ticket = 7;
  pull.half = true;
  messages.push_back({kPull, Encode(pull), id_bytes});
  return messages;
}

struct OthersRefused : rpc::Service {
  std::unique_ptr<rpc::Conversation> Open(const std::string&, const std::string&, std::string*) override {
    throw Error(Code::kFailedPrecondition, "rows only");
  }
};

class HostileFramesTest : public testing::Test {
 protected:
  HostileFramesTest() : service_(others_, [] {}) {
    service_.HostRows("store", *group_, {0, kNumBuckets}, "agreed");
    server_ = std::make_unique<rpc::Server>(rpc::ServerOptions{}, service_);
  }

  std::string Greeting() const {
    return rpc::FrameText(rpc::kGreeting, rpc::EncodeGreeting({"", RowWords("store", {0, kNumBuckets}, "agreed")}), "");
  }
  void Damage(std::string* bytes) {
    if (bytes->empty()) return;
    switch (random_() % 4) {
      case 0: bytes->resize(random_() % bytes->size()); break;
      case 1: bytes->append(random_() % 20, 'x'); break;
      case 2: {  // a false number
        const uint64_t lie = random_() % 2 ? ~uint64_t{0} >> random_() % 64 : uint64_t{1} << random_() % 64;
        const size_t at = random_() % bytes->size();
        std::memcpy(bytes->data() + at, &lie, std::min<size_t>(sizeof(lie), bytes->size() - at));
        break;
      }
      default:
        for (int changes = 1 + static_cast<int>(random_() % 4); changes > 0; --changes) {
          (*bytes)[random_() % bytes->size()] = static_cast<char>(random_());
        }
    }
  }
  // A well-behaved worker.
  int64_t JoinAsGoodWorker() {
    rpc::Client client({{"127.0.0.1", server_->port()}}, {RowWords("store", {0, kNumBuckets}, "agreed")}, {});
    const auto call =
        client.Begin(0, {kJoin, 0, Encode(WhereQuestion{2, 0}), {}, nullptr}, {}, rpc::InSeconds(rpc::kEndsHangs));
    return DecodeJoinAnswer(call->Wait().head).joined.incarnation;
  }

  const std::unique_ptr<Group> group_ = MakeTestGroup({.sgd_min_count = 2});
  OthersRefused others_;
  Service service_;
  std::unique_ptr<rpc::Server> server_;
  std::mt19937_64 random_{17};
};

TEST_F(HostileFramesTest, HeadsAndBodiesThatLieAreAnsweredOneByOne) {
  rpc::Client client({{"127.0.0.1", server_->port()}}, {RowWords("store", {0, kNumBuckets}, "agreed")}, {});
  int num_refused = 0;
  int64_t incarnation = 0;
  for (int i = 0; i < kInputs * 4 / 5; ++i) {
    // A worker that once sent a very high number has no further valid pushes; so workers change.
    const int64_t worker = 10 + i / 20;
    if (i % 20 == 0) incarnation = group_->Join(worker).incarnation;
    const std::vector<Message> messages = GoodMessages(*group_, worker, incarnation, i);
    Message message = messages[random_() % messages.size()];
    if (i % 50 != 0) Damage(random_() % 2 ? &message.head : &message.body);
    const auto owner = std::make_shared<std::string>(message.body);
    const auto call = client.Begin(0, {message.kind, 0, message.head, {rpc::AsBytes(*owner)}, owner}, {},
                                   rpc::InSeconds(rpc::kEndsHangs));
    try {
      call->Wait();
    } catch (const Error& error) {
      ++num_refused;
      EXPECT_TRUE(error.code() == Code::kInvalidArgument || error.code() == Code::kDataLoss ||
                  error.code() == Code::kFailedPrecondition)
          << error.what();
    }
  }
  EXPECT_GT(num_refused, kInputs / 4);
  EXPECT_EQ(server_->stats().connections, 1) << "the conversation went on through all of it";
  EXPECT_GT(JoinAsGoodWorker(), 0);
  EXPECT_GE(RowsOf(*group_).rows.size(), 20u) << "what is right among them is applied";
}

TEST_F(HostileFramesTest, StreamsThatAreNoFramesAreHungUpOn) {
  std::string good = Greeting();
  for (const Message& message : GoodMessages(*group_, 1, group_->Join(1).incarnation, 0)) {
    good += rpc::FrameText(message.kind, message.head, message.body);
  }
  for (int i = 0; i < kInputs / 5; ++i) {
    std::string bytes = good;
    for (int times = 1 + static_cast<int>(random_() % 3); times > 0; --times) Damage(&bytes);
    rpc::RawPeer peer(server_->port());
    peer.Say(bytes);
  }
  EXPECT_GT(JoinAsGoodWorker(), 0);
  rpc::Eventually([&] { return server_->stats().connections == 0; });
}

}  // namespace
}  // namespace monolith::ps
