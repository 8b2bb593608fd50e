#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "rpc/client.h"
#include "rpc/conversation_for_test.h"
#include "rpc/protocol.h"
#include "rpc/server.h"

namespace monolith::rpc {
namespace {

TEST(ConversationTest, AnswersComeInOrderWithHeadAndBody) {
  Pair pair;
  std::vector<std::shared_ptr<Call>> calls;
  for (int i = 0; i < 100; ++i) calls.push_back(pair.Begin(kEcho, std::to_string(i), std::string(i * 1000, 'a')));
  for (int i = 0; i < 100; ++i) {
    const Frame& answer = calls[i]->Wait();
    EXPECT_EQ(answer.head, std::to_string(i));
    EXPECT_EQ(AsText(answer.body), std::string(i * 1000, 'a'));
  }
  EXPECT_EQ(pair.client.ReplyOf(0), "hello you");
  EXPECT_EQ(pair.service.opened, 1);
}

TEST(ConversationTest, ABodyGoesWhereItsPlaceIs) {
  Pair pair;
  std::string place(3'000'000, '-');
  const std::span<uint8_t> bytes(reinterpret_cast<uint8_t*>(place.data()), place.size());
  const auto call = pair.client.Begin(0, {kBulk, 0, "3000000", {}, nullptr}, bytes, InSeconds(kEndsHangs));
  EXPECT_EQ(call->Wait().body.data(), bytes.data());
  EXPECT_EQ(place, std::string(3'000'000, 'x'));
  const auto wrong = pair.client.Begin(0, {kBulk, 0, "2999999", {}, nullptr}, bytes, InSeconds(kEndsHangs));
  std::string text;
  EXPECT_EQ(CodeOf([&] { wrong->Wait(); }, &text), Code::kDataLoss);
  EXPECT_NE(text.find("an answer of 3000000 bytes was expected, got 2999999"), std::string::npos) << text;
  EXPECT_EQ(pair.Begin(kEcho, "after")->Wait().head, "after") << "the channel has healed";
}

TEST(ConversationTest, BodiesOfAnySizeArriveHoweverTheyAreCut) {
  Pair pair;
  // Sizes around the limit of one receive and the low-water mark, on both sides.
  for (const size_t bytes : {size_t{1} << 20, (size_t{1} << 20) + 1, (size_t{8} << 20) - 1, (size_t{8} << 20) + 500'000,
                             (size_t{16} << 20) + 3, size_t{20'000'000}}) {
    const std::string body(bytes, 'b');
    for (int again = 0; again < 3; ++again) {
      const auto call = pair.Begin(kEcho, "x", body);
      ASSERT_EQ(call->Wait().body.size(), bytes);
    }
    ASSERT_EQ(pair.Begin(kEcho, "small", "s")->Wait().head, "small");
  }
}

TEST(ConversationTest, ManyLargeCallsInARowLeaveNoneUnheard) {
  Pair pair;
  const std::string body(700'000, 'b');
  std::vector<std::shared_ptr<Call>> calls;
  for (int i = 0; i < 50; ++i) calls.push_back(pair.Begin(kEcho, std::to_string(i), body));
  for (int i = 0; i < 50; ++i) ASSERT_EQ(calls[i]->Wait().head, std::to_string(i));
  ASSERT_EQ(pair.Begin(kEcho, "small", "s")->Wait().head, "small");
}

TEST(ConversationTest, AnErrorOfTheServiceIsTheCallsAndNobodyElses) {
  Pair pair;
  const auto before = pair.Begin(kEcho, "1"), bad = pair.Begin(kFail, "no such row"), after = pair.Begin(kEcho, "2");
  std::string text;
  EXPECT_EQ(CodeOf([&] { bad->Wait(); }, &text), Code::kNotFound);
  EXPECT_EQ(text, "127.0.0.1:" + std::to_string(pair.server->port()) + ": echo: no such row");
  EXPECT_EQ(before->Wait().head, "1");
  EXPECT_EQ(after->Wait().head, "2");
  EXPECT_EQ(pair.service.opened, 1);
}

TEST(ConversationTest, CallsWithoutAnAnswerAreAskedAgainAfterABreak) {
  // A server that answers the greeting and dies after it received the questions.
  Socket listener = Listen({"127.0.0.1", 0});
  const Address address{"127.0.0.1", PortOf(listener)};
  Client client({address}, {"you"}, {});
  const auto first = client.Begin(0, {kEcho, 0, "first", {}, nullptr}, {}, InSeconds(kEndsHangs));
  const auto second = client.Begin(0, {kEcho, 0, "second", {}, nullptr}, {}, InSeconds(kEndsHangs));
  std::optional<Accepted> accepted;
  Eventually([&] { return (accepted = Accept(listener)).has_value(); });
  Stream stream(std::move(accepted->socket));
  FrameReceiver receiver;
  const auto hear = [&] {
    Eventually([&] { return receiver.Receive(stream, {}, nullptr) == FrameReceiver::State::kComplete; });
    const Frame frame = std::move(receiver.frame());
    receiver.Reset();
    return frame.head;
  };
  hear();
  FrameSender sender;
  sender.Add({kGreeting, 0, "", {}, nullptr});
  EXPECT_EQ(sender.Send(stream), FrameSender::State::kDone);
  EXPECT_EQ(hear(), "first");
  EXPECT_EQ(hear(), "second");
  stream.Close();
  listener.Close();
  EchoService service;
  ServerOptions options;
  options.address = address;
  Server server(options, service);
  EXPECT_EQ(first->Wait().head, "first");
  EXPECT_EQ(second->Wait().head, "second");
  EXPECT_EQ(service.opened, 1);
  EXPECT_EQ(client.ReplyOf(0), "hello you");
}

TEST(ConversationTest, AServerThatIsNotThereYetIsWaitedFor) {
  EchoService service;
  auto first = std::make_unique<Server>(ServerOptions{}, service);
  const Address address{"127.0.0.1", first->port()};
  first.reset();
  Client client({address}, {""}, {});
  const auto call = client.Begin(0, {kEcho, 0, "early", {}, nullptr}, {}, InSeconds(kEndsHangs));
  ServerOptions options;
  options.address = address;
  Server second(options, service);
  EXPECT_EQ(call->Wait().head, "early");
}

TEST(ConversationTest, ADeadlineEndsACallAndTheNextOnesGoOn) {
  Pair pair;
  const auto slow = pair.Begin(kBlock, "slow", "", 0.05);
  EXPECT_EQ(CodeOf([&] { slow->Wait(); }), Code::kDeadlineExceeded);
  pair.service.released = true;
  EXPECT_EQ(pair.Begin(kEcho, "next")->Wait().head, "next");
}

TEST(ConversationTest, AServerThatStaysAwayIsNamedAtTheDeadline) {
  uint16_t port;
  {
    EchoService service;
    port = Server({}, service).port();
  }
  Client client({{"127.0.0.1", port}}, {""}, {});
  std::string text;
  const auto call = client.Begin(0, {kEcho, 0, "", {}, nullptr}, {}, InSeconds(0.05));
  EXPECT_EQ(CodeOf([&] { call->Wait(); }, &text), Code::kUnreachable);
  EXPECT_EQ(text, "127.0.0.1:" + std::to_string(port) + ": cannot be reached: Connection refused");
}

TEST(ConversationTest, AServerThatCannotBeReachedIsLostBeforeTheDeadlineAndFoundWhereItMoved) {
  uint16_t port;
  {
    EchoService service;
    port = Server({}, service).port();
  }
  ClientOptions options;
  options.lost_after_seconds = 0.05;
  Client client({{"127.0.0.1", port}}, {""}, options);
  for (int attempt = 0; attempt < 2; ++attempt) {  // each has the full timeout
    const auto call = client.Begin(0, {kEcho, 0, "", {}, nullptr}, {}, InSeconds(kEndsHangs));
    EXPECT_EQ(CodeOf([&] { call->Wait(); }), Code::kUnreachable);
  }
  EchoService service;
  Server server({}, service);
  client.Move(0, {"127.0.0.1", server.port()}, "");
  const auto call = client.Begin(0, {kEcho, 0, "there", {}, nullptr}, {}, InSeconds(kEndsHangs));
  EXPECT_EQ(call->Wait().head, "there");
}

TEST(ConversationTest, ACallThatIsGivenUpHasLetGoOfItsMemory) {
  Pair pair;
  auto body = std::make_shared<std::string>(50'000'000, 'a');
  const std::weak_ptr<std::string> seen = body;
  auto call = pair.client.Begin(0, {kBlock, 0, "", {AsBytes(*body)}, std::move(body)}, {}, InSeconds(kEndsHangs));
  const auto behind = pair.Begin(kEcho, "behind");
  pair.client.GiveUp(0, call);
  EXPECT_TRUE(call->is_done());
  call.reset();
  Eventually([&] { return seen.expired(); });
  pair.service.released = true;
  EXPECT_EQ(behind->Wait().head, "behind");
}

TEST(ConversationTest, TheWindowHoldsBackWhoAsksTooMuch) {
  ClientOptions options;
  options.window_bytes = 10'000;
  Pair pair({}, options);
  const auto first = pair.Begin(kBlock, "1", std::string(9'000, 'a'));
  EXPECT_EQ(CodeOf([&] { pair.Begin(kEcho, "2", std::string(9'000, 'a'), 0.05); }), Code::kDeadlineExceeded);
  std::thread later([&] { pair.service.released = true; });
  EXPECT_EQ(pair.Begin(kEcho, "3", std::string(50'000, 'a'))->Wait().head, "3") << "larger than the window, alone";
  EXPECT_EQ(first->Wait().head, "1");
  later.join();
}

TEST(ConversationTest, TokensAndGreetingsDecideWhoIsSpokenTo) {
  ServerOptions options;
  options.token = "secret";
  EchoService service;
  Server server(options, service);
  const auto ask = [&](const std::string& token, const std::string& words) {
    ClientOptions client_options;
    client_options.token = token;
    Client client({{"127.0.0.1", server.port()}}, {words}, client_options);
    return client.Begin(0, {kEcho, 0, "in", {}, nullptr}, {}, InSeconds(kEndsHangs))->Wait().head;
  };
  EXPECT_EQ(ask("secret", ""), "in");
  EXPECT_EQ(CodeOf([&] { ask("secreT", ""); }), Code::kPermissionDenied);
  EXPECT_EQ(CodeOf([&] { ask("", ""); }), Code::kPermissionDenied);
  std::string text;
  EXPECT_EQ(CodeOf([&] { ask("secret", "stranger"); }, &text), Code::kFailedPrecondition);
  EXPECT_NE(text.find("strangers are not spoken to"), std::string::npos);
  EXPECT_EQ(service.opened, 1);
  EXPECT_EQ(server.stats().refused, 3);
}

TEST(ConversationTest, GarbageIsAnsweredAndHungUpOnAndTheServerGoesOn) {
  ServerOptions options;
  options.limits = {1000, 100'000};
  options.patience_seconds = 0.2;
  Pair pair(options);
  const std::string greeting = FrameText(kGreeting, EncodeGreeting({"", "raw"}), "");
  const std::vector<std::string> bad = {
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n and so on, for more than a header",
      FrameText(kEcho, "no greeting", ""),
      FrameText(kGreeting, "no greeting either", ""),
      FrameText(kGreeting, std::string(kGreetingBytes + 1, 'a'), ""),
      greeting + std::string(40, '\0'),
      greeting + FrameText(kEcho, std::string(1001, 'a'), ""),
      greeting + FrameText(kEcho, "", std::string(100'001, 'a')),
  };
  for (const std::string& bytes : bad) {
    RawPeer peer(pair.server->port());
    peer.Say(bytes);
    const std::string heard = peer.Hear();
    EXPECT_GE(heard.size(), kHeaderBytes) << bytes.substr(0, 60);
  }
  EXPECT_EQ(pair.server->stats().refused, static_cast<int64_t>(bad.size()));
  EXPECT_EQ(pair.Begin(kEcho, "still there")->Wait().head, "still there");
}

TEST(ConversationTest, WhoStopsInTheMiddleLosesTheServersPatience) {
  ServerOptions options;
  options.patience_seconds = 0.1;
  Pair pair(options);
  const std::string greeting = FrameText(kGreeting, EncodeGreeting({"", "raw"}), "");
  const std::string frame = FrameText(kEcho, "head", "body");
  for (const std::string& bytes :
       {std::string(), greeting.substr(0, 10), greeting + frame.substr(0, frame.size() - 1)}) {
    RawPeer peer(pair.server->port());
    peer.Say(bytes);
    peer.Hear();
  }
  RawPeer idle(pair.server->port());
  idle.Say(greeting + frame);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(pair.server->stats().connections, 1) << "whoever has said all it wanted may stay";
}

TEST(ConversationTest, RandomBytesNeverTakeTheServerDown) {
  Pair pair;
  std::mt19937_64 random(9);
  const std::string good = FrameText(kGreeting, EncodeGreeting({"", "raw"}), "") + FrameText(kEcho, "head", "body");
  for (int i = 0; i < 300; ++i) {
    std::string bytes = good;
    for (int changes = 1 + static_cast<int>(random() % 4); changes > 0; --changes) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    bytes.resize(random() % (bytes.size() + 1));
    RawPeer peer(pair.server->port());
    peer.Say(bytes);
  }
  EXPECT_EQ(pair.Begin(kEcho, "still there")->Wait().head, "still there");
}

TEST(ConversationTest, ASlowReaderHoldsUpItselfOnly) {
  ServerOptions options;
  options.num_threads = 1;
  Pair pair(options);
  RawPeer slow(pair.server->port());
  slow.Say(FrameText(kGreeting, EncodeGreeting({"", "raw"}), ""));
  for (int i = 0; i < 5; ++i) slow.Say(FrameText(kBulk, "20000000", ""));
  EXPECT_EQ(pair.Begin(kEcho, "quick")->Wait().head, "quick");
  Eventually([&] { return pair.service.heard >= 2; });
  EXPECT_LE(pair.service.heard, 3) << "its next question is not heard before it has taken an answer";
}

TEST(ConversationTest, CallsThatRunEndBeforeTheServerDoes) {
  Pair pair;
  const auto call = pair.Begin(kBlock, "runs");
  Eventually([&] { return pair.service.blocked == 1; });
  std::thread release([&] { pair.service.released = true; });
  pair.server->Stop(kEndsHangs);
  EXPECT_EQ(call->Wait().head, "runs");
  release.join();
  Eventually([&] { return pair.service.closed == pair.service.opened; });
}

TEST(ConversationTest, ManyClientsAndManyThreads) {
  ServerOptions options;
  options.num_threads = 3;
  EchoService service;
  Server one(options, service), other(options, service);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Client client({{"127.0.0.1", one.port()}, {"127.0.0.1", other.port()}}, {"a", "b"}, {});
      for (int i = 0; i < 50; ++i) {
        const std::string body(1 + (i * 7919 + t) % 200'000, static_cast<char>('a' + t));
        const auto first = client.Begin(0, {kEcho, 0, "x", {AsBytes(body)}, nullptr}, {}, InSeconds(kEndsHangs));
        const auto second = client.Begin(1, {kEcho, 0, "y", {AsBytes(body)}, nullptr}, {}, InSeconds(kEndsHangs));
        EXPECT_EQ(AsText(second->Wait().body), body);
        EXPECT_EQ(AsText(first->Wait().body), body);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(service.heard, 400);
}

TEST(ConversationTest, HundredsOfIdleConnectionsAreNoBurden) {
  Pair pair;
  const std::string greeting = FrameText(kGreeting, EncodeGreeting({"", "raw"}), "");
  std::vector<std::unique_ptr<RawPeer>> idle;
  for (int i = 0; i < 400; ++i) {
    idle.push_back(std::make_unique<RawPeer>(pair.server->port()));
    idle.back()->Say(greeting);
  }
  Eventually([&] { return pair.service.opened >= 400; });
  EXPECT_EQ(pair.Begin(kEcho, "quick")->Wait().head, "quick");
  idle.clear();
  Eventually([&] { return pair.server->stats().connections == 1; });
}

TEST(ConversationTest, AMoveTakesTheCallsAlong) {
  Pair pair;
  EchoService elsewhere;
  Server other({}, elsewhere);
  const auto blocked = pair.Begin(kBlock, "moves");
  Eventually([&] { return pair.service.blocked == 1; });
  elsewhere.released = true;
  pair.client.Move(0, {"127.0.0.1", other.port()}, "again");
  EXPECT_EQ(blocked->Wait().head, "moves");
  EXPECT_EQ(pair.client.ReplyOf(0), "hello again");
  pair.service.released = true;
}

TEST(ConversationTest, AClosedClientEndsItsCalls) {
  Pair pair;
  const auto call = pair.Begin(kBlock, "never");
  Eventually([&] { return pair.service.blocked == 1; });
  pair.client.Close();
  EXPECT_EQ(CodeOf([&] { call->Wait(); }), Code::kFailedPrecondition);
  EXPECT_EQ(CodeOf([&] { pair.Begin(kEcho, ""); }), Code::kFailedPrecondition);
  EXPECT_EQ(CodeOf([&] { pair.client.Begin(1, {}, {}, InSeconds(1)); }), Code::kInvalidArgument);
  pair.service.released = true;
}

}  // namespace
}  // namespace monolith::rpc
