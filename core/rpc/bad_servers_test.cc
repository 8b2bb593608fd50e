#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "rpc/conversation_for_test.h"

namespace monolith::rpc {
namespace {

// A server that follows the script of a test, byte by byte.
class ScriptedServer {
 public:
  ScriptedServer() : listener_(Listen({"127.0.0.1", 0})), address_{"127.0.0.1", PortOf(listener_)} {}

  const Address& address() const { return address_; }
  void AcceptNext() {
    receiver_ = FrameReceiver();
    std::optional<Accepted> accepted;
    Eventually([&] { return (accepted = Accept(listener_)).has_value(); });
    stream_ = Stream(std::move(accepted->socket));
  }
  Frame Hear() {
    Eventually([&] { return receiver_.Receive(stream_, {}, nullptr) == FrameReceiver::State::kComplete; });
    Frame frame = std::move(receiver_.frame());
    receiver_.Reset();
    return frame;
  }
  void Say(std::string_view bytes) {
    const iovec part{const_cast<char*>(bytes.data()), bytes.size()};
    EXPECT_EQ(stream_.Send({&part, 1}).bytes, bytes.size());
  }
  void Greet() {
    EXPECT_EQ(Hear().header.kind, kGreeting);
    Say(FrameText(kGreeting, "", ""));
  }
  void HangUp() { stream_.Close(); }
  // Closes the listener and the connection.
  void Leave() {
    HangUp();
    listener_.Close();
  }
  const Socket& socket() const { return stream_.socket(); }

 private:
  Socket listener_;
  const Address address_;
  Stream stream_;
  FrameReceiver receiver_;
};

std::string FrameFor(uint64_t call, uint16_t kind, const std::string& head, const std::string& body) {
  const HeaderBytes header = EncodeHeader({kind, call, static_cast<uint32_t>(head.size()), body.size()});
  return AsText(header) + head + body;
}

std::string AnswerText(const Frame& question, const std::string& head, const std::string& body) {
  return FrameFor(question.header.call, question.header.kind, head, body);
}

std::shared_ptr<Call> Ask(Client& client, std::string head, double seconds = kEndsHangs,
                          std::span<uint8_t> place = {}) {
  return client.Begin(0, {kEcho, 0, std::move(head), {}, nullptr}, place, InSeconds(seconds));
}

TEST(BadServersTest, OneThatAcceptsAndSaysNothingIsWaitedForUntilTheDeadline) {
  ScriptedServer server;
  Client client({server.address()}, {"you"}, {});
  std::string text;
  EXPECT_EQ(CodeOf([&] { Ask(client, "anyone?", 0.05)->Wait(); }, &text), Code::kDeadlineExceeded);
  EXPECT_EQ(text, server.address().Text() + ": no answer came in time");
}

TEST(BadServersTest, OneThatFallsSilentIsLeftAtTheDeadlineAndTheNextCallComesByANewConnection) {
  // Looks like a peer in a network that drops everything.
  ScriptedServer server;
  Client client({server.address()}, {"you"}, {});
  const auto lost = Ask(client, "lost", 0.1);
  server.AcceptNext();
  server.Greet();
  EXPECT_EQ(CodeOf([&] { lost->Wait(); }), Code::kDeadlineExceeded);
  const auto next = Ask(client, "next");
  server.AcceptNext();
  server.Greet();
  const Frame question = server.Hear();
  EXPECT_EQ(question.head, "next") << "what was given up is not asked again";
  server.Say(AnswerText(question, "here", ""));
  EXPECT_EQ(next->Wait().head, "here");
}

TEST(BadServersTest, ACallIsResumedWhereverItsAnswerBreaksOff) {
  const std::string body(3000, 'b');
  std::string place(body.size(), '-');
  ScriptedServer server;
  Client client({server.address()}, {"you"}, {});
  const auto call = Ask(client, "call", kEndsHangs, {reinterpret_cast<uint8_t*>(place.data()), place.size()});
  for (const size_t said : {size_t{0}, size_t{1}, kHeaderBytes, kHeaderBytes + 2, kHeaderBytes + 1000}) {
    server.AcceptNext();
    server.Greet();
    const Frame question = server.Hear();
    EXPECT_EQ(question.head, "call");
    server.Say(AnswerText(question, "head", std::string(body.size(), 'x')).substr(0, said));
    server.HangUp();
  }
  server.AcceptNext();
  server.Greet();
  server.Say(AnswerText(server.Hear(), "head", body));
  EXPECT_EQ(call->Wait().head, "head");
  EXPECT_EQ(place, body);
}

TEST(BadServersTest, AnswersThatMakeNoSenseAreErrorsThatSaySo) {
  struct Case {
    std::function<std::string(const Frame&)> answer;
    Code code;
    std::string text;
  };
  const std::vector<Case> cases = {
      {[](const Frame&) { return std::string("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"); },
       Code::kDataLoss, "these bytes do not begin one"},
      {[](const Frame& question) { return FrameFor(question.header.call + 1, kEcho, "", ""); }, Code::kDataLoss,
       "an answer arrived without a pending call"},
      {[](const Frame& question) { return AnswerText(question, "", "four"); }, Code::kDataLoss,
       "an answer of 8 bytes was expected, got 4"},
      {[](const Frame& question) { return FrameFor(question.header.call, kError, "?", ""); }, Code::kDataLoss,
       "bytes expected"},
      {[](const Frame& question) { return AsText(EncodeHeader({kEcho, question.header.call, 1, uint64_t{1} << 40})); },
       Code::kResourceExhausted, "at most 1073741824"},
  };
  ScriptedServer server;
  Client client({server.address()}, {"you"}, {});
  uint8_t place[8];
  for (const Case& each : cases) {
    const auto call = Ask(client, "call", kEndsHangs, place);
    server.AcceptNext();
    server.Greet();
    server.Say(each.answer(server.Hear()));
    std::string text;
    EXPECT_EQ(CodeOf([&] { call->Wait(); }, &text), each.code);
    EXPECT_NE(text.find(each.text), std::string::npos) << text;
    EXPECT_EQ(text.find(server.address().Text()), 0u) << text;
  }
}

TEST(BadServersTest, AGreetingThatIsAnsweredWithSomethingElseIsAnError) {
  ScriptedServer server;
  Client client({server.address()}, {"you"}, {});
  const auto call = Ask(client, "call");
  server.AcceptNext();
  server.Say(FrameText(kEcho, "", ""));
  std::string text;
  EXPECT_EQ(CodeOf([&] { call->Wait(); }, &text), Code::kDataLoss);
  EXPECT_NE(text.find("the greeting was not answered as one"), std::string::npos) << text;
}

TEST(BadServersTest, OneThatIsBackAtAnotherAddressGetsTheCallsThatWait) {
  ScriptedServer server;
  Client client({server.address()}, {"you"}, {});
  const auto first = Ask(client, "first"), second = Ask(client, "second");
  server.AcceptNext();
  server.Greet();
  const Frame question = server.Hear();
  server.Say(AnswerText(question, "done", ""));
  EXPECT_EQ(first->Wait().head, "done");
  server.Leave();
  EchoService service;
  Server elsewhere({}, service);
  client.Move(0, {"127.0.0.1", elsewhere.port()}, "moved");
  EXPECT_EQ(second->Wait().head, "second");
  EXPECT_EQ(service.heard, 1) << "what has its answer is not asked again";
}

int OptionOf(const Socket& socket, int level, int option) {
  int value = -1;
  socklen_t size = sizeof(value);
  getsockopt(socket.descriptor(), level, option, &value, &size);
  return value;
}

TEST(BadServersTest, BothEndsNoticeAPeerThatIsGoneWithoutAWord) {
  const Socket listener = Listen({"127.0.0.1", 0});
  const Socket ours = BeginConnect({"127.0.0.1", PortOf(listener)}, 0);
  std::optional<Accepted> theirs;
  Eventually([&] { return (theirs = Accept(listener)).has_value(); });
  for (const Socket* socket : {&ours, static_cast<const Socket*>(&theirs->socket)}) {
    EXPECT_EQ(OptionOf(*socket, SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_LE(OptionOf(*socket, IPPROTO_TCP, TCP_KEEPIDLE) +
                  OptionOf(*socket, IPPROTO_TCP, TCP_KEEPINTVL) * OptionOf(*socket, IPPROTO_TCP, TCP_KEEPCNT),
              60)
        << "seconds of silence";
    EXPECT_EQ(OptionOf(*socket, IPPROTO_TCP, TCP_USER_TIMEOUT), 60'000) << "milliseconds without a receipt";
  }
}

TEST(BadServersTest, EveryCallIsAnsweredThoughServersComeAndGo) {
  constexpr int kServers = 2, kThreads = 3, kCalls = 40;
  std::vector<EchoService> services(kServers);
  std::vector<std::unique_ptr<Server>> servers;
  std::vector<Address> addresses;
  for (EchoService& service : services) {
    servers.push_back(std::make_unique<Server>(ServerOptions{}, service));
    addresses.push_back({"127.0.0.1", servers.back()->port()});
  }
  std::atomic<bool> is_over{false};
  std::thread restarting([&] {
    std::mt19937 random(3);
    while (!is_over) {
      const size_t number = random() % kServers;
      servers[number]->Stop(random() % 2 ? 0.0 : 0.01);
      servers[number].reset();
      ServerOptions options;
      options.address = addresses[number];
      Eventually([&] {  // its port may briefly be in use as the local port of another connection
        try {
          servers[number] = std::make_unique<Server>(options, services[number]);
        } catch (const Error&) {
        }
        return servers[number] != nullptr;
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 8));
    }
  });
  std::vector<std::thread> asking;
  for (int t = 0; t < kThreads; ++t) {
    asking.emplace_back([&, t] {
      ClientOptions options;
      options.first_backoff_seconds = 0.001;
      options.last_backoff_seconds = 0.01;
      Client client(addresses, {"a", "b"}, options);
      for (int i = 0; i < kCalls; ++i) {
        const std::string body(1 + (i * 7919 + t) % 50'000, static_cast<char>('a' + t));
        std::vector<std::shared_ptr<Call>> calls;
        for (int n = 0; n < 4; ++n) {
          calls.push_back(client.Begin(n % kServers, {kEcho, 0, std::to_string(n), {AsBytes(body)}, nullptr}, {},
                                       InSeconds(kEndsHangs)));
        }
        for (int n = 0; n < 4; ++n) {
          EXPECT_EQ(calls[n]->Wait().head, std::to_string(n));
          EXPECT_EQ(AsText(calls[n]->Wait().body), body);
        }
        if (i % 10 == t) client.Move(t % kServers, addresses[t % kServers], "again");
      }
    });
  }
  for (std::thread& thread : asking) thread.join();
  is_over = true;
  restarting.join();
  for (const EchoService& service : services) EXPECT_GE(service.heard, kThreads * kCalls * 2);
}

}  // namespace
}  // namespace monolith::rpc
