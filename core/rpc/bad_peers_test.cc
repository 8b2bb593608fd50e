#include <gtest/gtest.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "rpc/conversation_for_test.h"

namespace monolith::rpc {
namespace {

std::string Greeting() { return FrameText(kGreeting, EncodeGreeting({"", "raw"}), ""); }

double CpuSeconds() {
  timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

// Lets the process open only one more descriptor, during its lifetime.
class OneDescriptorLeft {
 public:
  OneDescriptorLeft() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int lowest = dup(0);
    close(lowest);
    const rlimit limit{static_cast<rlim_t>(lowest) + 1, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~OneDescriptorLeft() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_;
};

TEST(BadPeersTest, AHeadOfAnySizeComesWhole) {
  Pair pair;
  for (const size_t bytes : {0, 1, 4095, 4096, 4097, 8192, 100'000, 1 << 20}) {
    const std::string head(bytes, 'h');
    EXPECT_EQ(pair.Begin(kEcho, head, "body")->Wait().head, head);
  }
}

TEST(BadPeersTest, AServerWithoutDescriptorsRestsAndServesLater) {
  Pair pair;
  std::optional<RawPeer> peer;
  {
    const OneDescriptorLeft scarce;
    peer.emplace(pair.server->port());
    peer->Say(Greeting());
    const double before = CpuSeconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_LT(CpuSeconds() - before, 0.03) << "it asks for the same connection again and again";
    EXPECT_EQ(pair.service.opened, 0);
  }
  Eventually([&] { return pair.service.opened == 1; });
}

TEST(BadPeersTest, WhoGoesOnTalkingAfterARefusalHoldsUpNobody) {
  ServerOptions options;
  options.num_threads = 1;
  options.patience_seconds = 0.3;
  Pair pair(options);
  RawPeer peer(pair.server->port());
  std::atomic<bool> is_over{false};
  std::thread talking([&] {
    const std::string garbage(1 << 20, 'g');
    while (!is_over) peer.Say(garbage);
  });
  Eventually([&] { return pair.server->stats().refused == 1; });
  for (int i = 0; i < 20; ++i) EXPECT_EQ(pair.Begin(kEcho, "quick")->Wait().head, "quick");
  Eventually([&] { return pair.server->stats().connections == 1; });
  is_over = true;
  talking.join();
}

TEST(BadPeersTest, SizesThatLieCostNothing) {
  Pair pair;
  std::vector<std::unique_ptr<RawPeer>> liars;
  for (int i = 0; i < 100; ++i) {
    liars.push_back(std::make_unique<RawPeer>(pair.server->port()));
    const HeaderBytes header = EncodeHeader({kEcho, 1, 1 << 20, uint64_t{1} << 30});
    liars.back()->Say(Greeting() + AsText(header) + "only this");
  }
  Eventually([&] { return pair.service.opened == 100; });
  EXPECT_EQ(pair.Begin(kEcho, "quick")->Wait().head, "quick");
  EXPECT_EQ(pair.service.heard, 1);
}

TEST(BadPeersTest, WhoSendsALargeBodySlowlyIsHeardOut) {
  ServerOptions options;
  options.patience_seconds = 1.0;
  Pair pair(options);
  RawPeer peer(pair.server->port());
  const std::string body(800'000, 'b'), frame = FrameText(kEcho, "", body);
  peer.Say(Greeting());
  for (size_t piece = 0; piece < 8; ++piece) {
    const size_t part = frame.size() / 8;
    peer.Say(std::string_view(frame).substr(piece * part, piece < 7 ? part : frame.npos));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  Eventually([&] { return pair.service.heard == 1; });
  EXPECT_EQ(pair.server->stats().refused, 0);
}

TEST(BadPeersTest, AGreetingThatTricklesInHasATotalTime) {
  ServerOptions options;
  options.handshake_seconds = 0.3;
  Pair pair(options);
  RawPeer peer(pair.server->port());
  peer.Say(AsText(EncodeHeader({kGreeting, 1, kGreetingBytes, 0})));
  EXPECT_EQ(pair.Begin(kEcho, "quick")->Wait().head, "quick");
  Eventually([&] {  // every byte is progress, but does not extend the timeout
    peer.Say("y");
    return pair.server->stats().refused == 1;
  });
  EXPECT_EQ(pair.server->stats().connections, 1);
  EXPECT_EQ(pair.Begin(kEcho, "still there")->Wait().head, "still there");
}

TEST(BadPeersTest, TheOldestStrangersAreHungUpOnFirstAndGreetedPeersStay) {
  ServerOptions options;
  options.max_strangers = 4;
  Pair pair(options);
  std::vector<std::unique_ptr<RawPeer>> greeted, strangers;
  for (int i = 0; i < 6; ++i) {
    greeted.push_back(std::make_unique<RawPeer>(pair.server->port()));
    greeted.back()->Say(Greeting());
    Eventually([&] { return pair.service.opened == i + 1; });
  }
  for (int i = 0; i < 10; ++i) {
    strangers.push_back(std::make_unique<RawPeer>(pair.server->port()));
    strangers.back()->Say("M");
    Eventually([&] { return pair.server->stats().connections + pair.server->stats().refused == 7 + i; });
  }
  EXPECT_EQ(pair.server->stats().connections, 10);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(strangers[i]->Hear(), "") << "the oldest are gone";
  strangers.back()->Say(Greeting().substr(1));  // the newest one is still served
  Eventually([&] { return pair.service.opened == 7; });
  EXPECT_EQ(pair.Begin(kEcho, "quick")->Wait().head, "quick");
  EXPECT_EQ(pair.service.closed, 0);
}

TEST(BadPeersTest, ConnectionsBeyondTheLimitAreHungUpOnAndTriedAgain) {
  ServerOptions options;
  options.max_connections = 1;
  Pair pair(options);
  std::optional<RawPeer> first(pair.server->port());
  first->Say(Greeting());
  Eventually([&] { return pair.service.opened == 1; });
  const auto call = pair.Begin(kEcho, "later");
  Eventually([&] { return pair.server->stats().refused > 0; });
  EXPECT_FALSE(call->is_done());
  first.reset();
  EXPECT_EQ(call->Wait().head, "later");
}

}  // namespace
}  // namespace monolith::rpc
