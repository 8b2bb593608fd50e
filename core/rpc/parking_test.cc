#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "rpc/conversation_for_test.h"

namespace monolith::rpc {
namespace {

TEST(ParkingTest, AParkedCallIsAnsweredAfterWakeAndThoseBehindItInOrder) {
  ServerOptions options;
  options.num_threads = 1;
  Pair pair(options);
  const auto parked = pair.Begin(kPark, "parked", "its body");
  const auto behind = pair.Begin(kEcho, "behind");
  Eventually([&] { return pair.server->stats().parked == 1; });
  EXPECT_FALSE(behind->is_done()) << "calls of a connection keep their order";
  EXPECT_EQ(pair.server->stats().calls, 1) << "the greeting";
  pair.service.released = true;
  pair.server->Wake();
  EXPECT_EQ(AsText(parked->Wait().body), "its body");
  EXPECT_EQ(behind->Wait().head, "behind");
  EXPECT_EQ(pair.server->stats().calls, 3);
  EXPECT_EQ(pair.server->stats().parked, 0);
}

TEST(ParkingTest, OtherConnectionsGoOnMeanwhile) {
  ServerOptions options;
  options.num_threads = 1;
  Pair pair(options);
  std::vector<std::shared_ptr<Call>> parked;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<Client>(std::vector<Address>{{"127.0.0.1", pair.server->port()}},
                                               std::vector<std::string>{"you"}, ClientOptions{}));
    parked.push_back(clients.back()->Begin(0, {kPark, 0, "parked", {}, nullptr}, {}, InSeconds(kEndsHangs)));
  }
  Eventually([&] { return pair.server->stats().parked == 20; });
  for (int i = 0; i < 50; ++i) EXPECT_EQ(pair.Begin(kEcho, "quick")->Wait().head, "quick");
  for (const auto& call : parked) EXPECT_FALSE(call->is_done());
  pair.service.released = true;
  pair.server->Wake();
  for (const auto& call : parked) EXPECT_EQ(call->Wait().head, "parked");
}

TEST(ParkingTest, AParkedCallIsTriedAgainThoughNobodyWakesIt) {
  Pair pair;
  const auto parked = pair.Begin(kPark, "parked");
  Eventually([&] { return pair.service.parked >= 1; });
  pair.service.released = true;
  EXPECT_EQ(parked->Wait().head, "parked");
}

// Throws NotNow once, based on the state before it was woken.
class LateService : public Service {
 public:
  std::unique_ptr<Conversation> Open(const std::string&, const std::string&, std::string*) override {
    return std::make_unique<Late>(*this);
  }
  std::atomic<int> tries{0};
  Server* server = nullptr;

 private:
  struct Late : Conversation {
    explicit Late(LateService& owner) : service(owner) {}
    Answer Call(uint16_t, const std::string& head, std::span<const uint8_t>) override {
      if (service.tries++ > 0) return {head, {}, nullptr};
      service.server->Wake();
      throw NotNow();
    }
    LateService& service;
  };
};

TEST(ParkingTest, AWakeThatComesWhileACallIsBeingParkedIsNotLost) {
  LateService service;
  Server server({}, service);
  service.server = &server;
  Client client({{"127.0.0.1", server.port()}}, {""}, {});
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 50; ++i) {
    service.tries = 0;
    client.Begin(0, {kEcho, 0, "late", {}, nullptr}, {}, InSeconds(kEndsHangs))->Wait();
    EXPECT_EQ(service.tries, 2);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << "half a second each if it is lost";
}

TEST(ParkingTest, PatienceDoesNotRunOutOnAParkedCall) {
  ServerOptions options;
  options.patience_seconds = 0.05;
  Pair pair(options);
  const auto parked = pair.Begin(kPark, "parked");
  Eventually([&] { return pair.service.parked >= 3; });  // a second and more
  pair.service.released = true;
  pair.server->Wake();
  EXPECT_EQ(parked->Wait().head, "parked");
  EXPECT_EQ(pair.service.opened, 1) << "the connection is the same one";
  EXPECT_EQ(pair.server->stats().refused, 0);
}

TEST(ParkingTest, APeerThatHangsUpWhileParkedIsForgotten) {
  Pair pair;
  {
    RawPeer peer(pair.server->port());
    peer.Say(FrameText(kGreeting, EncodeGreeting({"", "raw"}), "") + FrameText(kPark, "", "") +
             FrameText(kEcho, "never heard", ""));
    Eventually([&] { return pair.server->stats().parked == 1; });
  }
  Eventually([&] { return pair.service.closed == 1; });
  EXPECT_EQ(pair.server->stats().connections, 0);
  EXPECT_EQ(pair.server->stats().parked, 0);
  EXPECT_EQ(pair.server->stats().refused, 0);
  EXPECT_EQ(pair.service.heard, pair.service.parked) << "the call behind it was not made";
}

TEST(ParkingTest, StopEndsParkedCallsWithoutDraining) {
  Pair pair;
  const auto parked = pair.Begin(kPark, "parked");
  Eventually([&] { return pair.server->stats().parked == 1; });
  const auto begin = std::chrono::steady_clock::now();
  pair.server->Stop(kEndsHangs);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::duration<double>(kEndsHangs / 2));
  EXPECT_EQ(pair.service.closed, 1);
  pair.server->Wake();
  EXPECT_FALSE(parked->is_done()) << "it is asked again where the server is back";
  ServerOptions options;
  options.address.port = pair.server->port();
  pair.service.released = true;
  Server again(options, pair.service);
  EXPECT_EQ(parked->Wait().head, "parked");
}

TEST(ParkingTest, WakesAndCallsAndPeersThatLeaveAtOnce) {
  ServerOptions options;
  options.num_threads = 3;
  Pair pair(options);
  std::atomic<bool> is_over{false};
  std::thread waker([&] {
    while (!is_over) {
      pair.service.released = !pair.service.released;
      pair.server->Wake();
    }
  });
  std::vector<std::thread> leaving;
  for (int t = 0; t < 2; ++t) {
    leaving.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        RawPeer peer(pair.server->port());
        peer.Say(FrameText(kGreeting, EncodeGreeting({"", "raw"}), "") + FrameText(kPark, "", ""));
      }
    });
  }
  for (int i = 0; i < 200; ++i) EXPECT_EQ(pair.Begin(kPark, std::to_string(i))->Wait().head, std::to_string(i));
  for (std::thread& thread : leaving) thread.join();
  is_over = true;
  waker.join();
  pair.service.released = true;
  pair.server->Wake();
  Eventually([&] { return pair.server->stats().connections == 1; });
  EXPECT_EQ(pair.server->stats().parked, 0);
}

}  // namespace
}  // namespace monolith::rpc
