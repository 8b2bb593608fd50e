#include "rpc/tls.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "rpc/conversation_for_test.h"

namespace monolith::rpc {
namespace {

namespace fs = std::filesystem;

// Certificates of two authorities, made by the openssl program in a folder of their own.
class Certificates {
 public:
  Certificates() : folder_(fs::path(testing::TempDir()) / ("monolith-tls-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
    for (const char* authority : {"ours", "theirs"}) {
      is_made_ &= Run("req -x509 " + Key(authority) + " -days 1 -subj /CN=" + authority + " -out " + Pem(authority));
    }
    Make("server", "ours", "IP:127.0.0.1,DNS:localhost", 1);
    Make("client", "ours", "DNS:a-worker", 1);
    Make("expired", "ours", "IP:127.0.0.1", -1);
    Make("elsewhere", "ours", "IP:127.0.0.2,DNS:elsewhere", 1);
    Make("stranger", "theirs", "IP:127.0.0.1", 1);
  }
  ~Certificates() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  bool is_made() const { return is_made_; }
  std::string Pem(const std::string& name) const { return (folder_ / (name + ".pem")).string(); }
  std::string KeyFile(const std::string& name) const { return (folder_ / (name + ".key")).string(); }
  std::shared_ptr<const TlsContext> Server(const std::string& name, const std::string& client_authority = "") const {
    return std::make_shared<TlsContext>(
        TlsFiles{Pem(name), KeyFile(name), client_authority.empty() ? "" : Pem(client_authority)}, true);
  }
  std::shared_ptr<const TlsContext> Client(const std::string& authority, const std::string& name = "") const {
    return std::make_shared<TlsContext>(
        TlsFiles{name.empty() ? "" : Pem(name), name.empty() ? "" : KeyFile(name), Pem(authority)}, false);
  }

 private:
  bool Run(const std::string& arguments) const {
    return std::system(("cd " + folder_.string() + " && openssl " + arguments + " >log 2>&1").c_str()) == 0;
  }
  std::string Key(const std::string& name) const {
    return "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout " + KeyFile(name);
  }
  void Make(const std::string& name, const std::string& authority, const std::string& names, int days) {
    std::ofstream(folder_ / "extensions") << "subjectAltName=" << names << "\n";
    is_made_ = is_made_ && Run("req " + Key(name) + " -subj /CN=" + name + " -out request") &&
               Run("x509 -req -in request -CA " + Pem(authority) + " -CAkey " + KeyFile(authority) +
                   " -CAcreateserial -extfile extensions -days " + std::to_string(days) + " -out " + Pem(name));
  }

  const fs::path folder_;
  bool is_made_ = true;
};

class TlsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { certificates_ = new Certificates; }
  static void TearDownTestSuite() { delete certificates_; }
  void SetUp() override {
    try {
      LoadOpenSsl();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    if (!certificates_->is_made()) GTEST_SKIP() << "the openssl program is not installed";
  }
  static const Certificates& certificates() { return *certificates_; }

 private:
  static Certificates* certificates_;
};
Certificates* TlsTest::certificates_ = nullptr;

// A server and a client, each with its side of TLS or without.
struct TlsPair {
  TlsPair(std::shared_ptr<const TlsContext> server_tls, std::shared_ptr<const TlsContext> client_tls,
          ServerOptions options = {}, ClientOptions client_options = {}, const std::string& host = "127.0.0.1")
      : server(WithTls(std::move(options), std::move(server_tls)), service),
        client({{host, server.port(), std::move(client_tls)}}, {"you"}, client_options) {}

  static ServerOptions WithTls(ServerOptions options, std::shared_ptr<const TlsContext> tls) {
    options.tls = std::move(tls);
    return options;
  }
  std::shared_ptr<Call> Begin(uint16_t kind, std::string head, const std::string& body = {},
                              double seconds = kEndsHangs) {
    const auto owner = std::make_shared<std::string>(body);
    return client.Begin(0, {kind, 0, std::move(head), {AsBytes(*owner)}, owner}, {}, InSeconds(seconds));
  }
  // The error of a call to a server that cannot be talked to.
  std::string Trouble(double seconds = 1.0) {
    std::string text;
    EXPECT_EQ(CodeOf([&] { Begin(kEcho, "", "", seconds)->Wait(); }, &text), Code::kUnreachable) << text;
    return text;
  }

  EchoService service;
  rpc::Server server;
  Client client;
};

void ExpectContains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST_F(TlsTest, CallsOfEverySizeReturnInOrder) {
  TlsPair pair(certificates().Server("server"), certificates().Client("ours"));
  std::vector<std::string> bodies;
  for (const size_t size : {0, 1, 16'243, 16'344, 16'383, 16'384, 16'385, 100'000, 5'000'000, 2}) {
    bodies.push_back(std::string(size, static_cast<char>('a' + bodies.size())));
  }
  std::vector<std::shared_ptr<Call>> calls;
  for (int round = 0; round < 3; ++round) {
    for (const std::string& body : bodies) calls.push_back(pair.Begin(kEcho, std::to_string(body.size()), body));
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string& body = bodies[i % bodies.size()];
    EXPECT_EQ(calls[i]->Wait().head, std::to_string(body.size()));
    EXPECT_TRUE(AsText(calls[i]->Wait().body) == body);
  }
  EXPECT_EQ(pair.client.ReplyOf(0), "hello you");
}

TEST_F(TlsTest, ManySmallCallsThatShareRecordsAreAllAnswered) {
  // The socket does not become readable for frames that TLS has decrypted with the ones before them.
  ServerOptions options;
  options.num_threads = 1;
  TlsPair pair(certificates().Server("server"), certificates().Client("ours"), options);
  pair.Begin(kEcho, "first")->Wait();
  const auto parked = pair.Begin(kPark, "parked");
  std::vector<std::shared_ptr<Call>> calls;
  for (int i = 0; i < 2'000; ++i) calls.push_back(pair.Begin(kEcho, std::to_string(i)));
  Eventually([&] { return pair.service.parked > 0; });
  pair.service.released = true;
  pair.server.Wake();
  for (int i = 0; i < 2'000; ++i) EXPECT_EQ(calls[static_cast<size_t>(i)]->Wait().head, std::to_string(i));
}

TEST_F(TlsTest, AnAnswerThatIsNotReadHoldsUpNoOther) {
  ServerOptions options;
  options.num_threads = 1;
  TlsPair pair(certificates().Server("server"), certificates().Client("ours"), options);
  Stream slow(BeginConnect({"127.0.0.1", pair.server.port()}, 0), certificates().Client("ours"), "127.0.0.1");
  const auto greeting = FrameText(kGreeting, EncodeGreeting({"", "slow"}), "");
  const auto question = FrameText(kBulk, "30000000", "");
  const auto say = [&](const std::string& bytes) {
    const iovec part{const_cast<char*>(bytes.data()), bytes.size()};
    Eventually([&] { return slow.Send({&part, 1}).kind == Transfer::kMoved; });
  };
  Eventually([&] { return slow.Shake().kind == Transfer::kMoved; });
  say(greeting);
  say(question);
  Eventually([&] { return pair.service.heard == 1; });
  for (int i = 0; i < 20; ++i) EXPECT_EQ(pair.Begin(kEcho, "quick")->Wait().head, "quick");
  FrameReceiver receiver;
  for (const size_t bytes : {size_t{0}, size_t{30'000'000}}) {
    Eventually([&] { return receiver.Receive(slow, {}, nullptr) == FrameReceiver::State::kComplete; });
    EXPECT_EQ(receiver.frame().body.size(), bytes);
    receiver.Reset();
  }
}

TEST_F(TlsTest, BothSidesMayRequireCertificates) {
  TlsPair pair(certificates().Server("server", "ours"), certificates().Client("ours", "client"));
  EXPECT_EQ(pair.Begin(kEcho, "known")->Wait().head, "known");
}

TEST_F(TlsTest, AClientWithoutTheRightCertificateIsNotServed) {
  for (const char* name : {"", "stranger", "expired"}) {
    TlsPair pair(certificates().Server("server", "ours"), certificates().Client("ours", name));
    ExpectContains(pair.Trouble(), "does the other side accept the certificate of this one?");
    EXPECT_EQ(pair.service.opened, 0);
    EXPECT_GE(pair.server.stats().refused, 1);
  }
}

TEST_F(TlsTest, AServerWithAnotherCertificateIsNotTalkedTo) {
  const std::pair<const char*, const char*> wrong[] = {
      {"stranger", "unable to get local issuer"}, {"expired", "expired"}, {"elsewhere", "IP address mismatch"}};
  for (const auto& [name, why] : wrong) {
    TlsPair pair(certificates().Server(name), certificates().Client("ours"));
    const std::string text = pair.Trouble();
    ExpectContains(text, why);
    ExpectContains(text, "expected one for 127.0.0.1 from the authorities in " + certificates().Pem("ours"));
    EXPECT_EQ(pair.service.opened, 0);
  }
}

TEST_F(TlsTest, TheNameOfAServerIsCheckedToo) {
  TlsPair pair(certificates().Server("server"), certificates().Client("ours"), {}, {}, "localhost");
  EXPECT_EQ(pair.Begin(kEcho, "by name")->Wait().head, "by name");
  TlsPair other(certificates().Server("elsewhere"), certificates().Client("ours"), {}, {}, "localhost");
  ExpectContains(other.Trouble(), "ostname mismatch");
}

TEST_F(TlsTest, TheTokenIsRequiredUnderTls) {
  ServerOptions options;
  options.token = "secret";
  TlsPair pair(certificates().Server("server"), certificates().Client("ours"), options);
  EXPECT_EQ(CodeOf([&] { pair.Begin(kEcho, "")->Wait(); }), Code::kPermissionDenied);
  EXPECT_EQ(pair.service.opened, 0);
}

TEST_F(TlsTest, OneSideWithoutTlsIsNamed) {
  TlsPair plain_server(nullptr, certificates().Client("ours"));
  ExpectContains(plain_server.Trouble(), "does the other side speak TLS");
  TlsPair plain_client(certificates().Server("server"), nullptr);
  std::string text;
  CodeOf([&] { plain_client.Begin(kEcho, "", "", 1.0)->Wait(); }, &text);
  EXPECT_EQ(plain_client.service.opened, 0);
}

TEST_F(TlsTest, GarbageInsteadOfAHandshakeCostsOnlyItsPeer) {
  TlsPair pair(certificates().Server("server"), certificates().Client("ours"));
  for (const std::string& garbage : {std::string(100, 'g'), std::string("GET / HTTP/1.1\r\n\r\n"),
                                     std::string("\x16\x03\x01\x40\x01\x01", 6) + std::string(20'000, '\0'),
                                     FrameText(kGreeting, EncodeGreeting({"", "raw"}), "")}) {
    const int64_t refused = pair.server.stats().refused;
    RawPeer peer(pair.server.port());
    peer.Say(garbage);
    EndSending(peer.socket);
    peer.Hear();
    Eventually([&] { return pair.server.stats().refused == refused + 1; });
  }
  EXPECT_EQ(pair.Begin(kEcho, "served")->Wait().head, "served");
  EXPECT_EQ(pair.service.opened, 1);
  EXPECT_EQ(pair.server.stats().refused, 4);
}

TEST_F(TlsTest, APeerThatStallsInTheHandshakeIsDisconnected) {
  ServerOptions options;
  options.num_threads = 1;
  options.handshake_seconds = 0.3;
  TlsPair pair(certificates().Server("server"), certificates().Client("ours"), options);
  RawPeer silent(pair.server.port()), begun(pair.server.port());
  begun.Say(std::string("\x16\x03\x01\x02\x00\x01\x00", 7));  // the beginning of a ClientHello
  EXPECT_EQ(pair.Begin(kEcho, "served")->Wait().head, "served");
  EXPECT_EQ(silent.Hear(), "");
  EXPECT_EQ(begun.Hear(), "");
  EXPECT_EQ(pair.server.stats().refused, 2);
}

TEST_F(TlsTest, AServerThatStallsInTheHandshakeIsLeft) {
  const Socket listener = Listen({"127.0.0.1", 0});
  ClientOptions options;
  options.handshake_seconds = 0.1;
  Client client({{"127.0.0.1", PortOf(listener), certificates().Client("ours")}}, {"you"}, options);
  std::string text;
  const auto call = client.Begin(0, {kEcho, 0, "", {}, nullptr}, {}, InSeconds(1.0));
  EXPECT_EQ(CodeOf([&] { call->Wait(); }, &text), Code::kUnreachable);
  ExpectContains(text, "no handshake in time");
}

TEST_F(TlsTest, UnfinishedHandshakesAreLimitedAndBlockNoClient) {
  ServerOptions options;
  options.max_strangers = 4;
  TlsPair pair(certificates().Server("server"), certificates().Client("ours"), options);
  std::vector<std::unique_ptr<RawPeer>> peers;
  for (int i = 0; i < 20; ++i) {
    peers.push_back(std::make_unique<RawPeer>(pair.server.port()));
    peers.back()->Say("\x16");
  }
  Eventually([&] { return pair.server.stats().refused >= 16; });
  EXPECT_EQ(pair.Begin(kEcho, "served")->Wait().head, "served");
}

TEST_F(TlsTest, CallsAreSentAgainToARestartedServer) {
  const auto tls = certificates().Server("server");
  auto pair = std::make_unique<TlsPair>(tls, certificates().Client("ours"));
  pair->Begin(kEcho, "before")->Wait();
  const auto waiting = pair->Begin(kPark, "waiting");
  Eventually([&] { return pair->service.parked > 0; });
  pair->server.Stop(0.0);
  EchoService service;
  service.released = true;
  ServerOptions options;
  options.address = {"127.0.0.1", pair->server.port()};
  options.tls = tls;
  Server again(options, service);
  EXPECT_EQ(waiting->Wait().head, "waiting");
  EXPECT_EQ(service.opened, 1);
}

TEST_F(TlsTest, ClientsOnManyThreadsAreServed) {
  ServerOptions options;
  options.num_threads = 3;
  TlsPair pair(certificates().Server("server"), certificates().Client("ours"), options);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Client client({{"127.0.0.1", pair.server.port(), certificates().Client("ours")}}, {"you"}, {});
      const std::string body(200'000, static_cast<char>('a' + t));
      for (int i = 0; i < 20; ++i) {
        const auto call = client.Begin(0, {kEcho, 0, "x", {AsBytes(body)}, nullptr}, {}, InSeconds(kEndsHangs));
        EXPECT_TRUE(AsText(call->Wait().body) == body);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(TlsTest, AConnectionOfAnotherPortIsAdoptedWithoutTls) {
  TlsPair pair(certificates().Server("server"), nullptr);
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  pair.server.Adopt(Socket(ends[0]), "10.0.0.1:5");
  SetNonBlocking(Socket(dup(ends[1])));
  Stream ours{Socket(ends[1])};
  const std::string greeting = FrameText(kGreeting, EncodeGreeting({"", "adopted"}), "");
  const iovec part{const_cast<char*>(greeting.data()), greeting.size()};
  EXPECT_EQ(ours.Send({&part, 1}).bytes, greeting.size());
  FrameReceiver receiver;
  Eventually([&] { return receiver.Receive(ours, {}, nullptr) == FrameReceiver::State::kComplete; });
  EXPECT_EQ(receiver.frame().head, "hello adopted");
  pair.server.Stop(0.0);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const Socket other(ends[1]);
  EXPECT_EQ(CodeOf([&] { pair.server.Adopt(Socket(ends[0]), ""); }), Code::kFailedPrecondition);
}

TEST_F(TlsTest, FilesThatAreNoCertificatesAreNamed) {
  const Certificates& files = certificates();
  const auto text_of = [](TlsFiles wrong, bool is_server) {
    std::string text;
    EXPECT_EQ(CodeOf([&] { TlsContext(std::move(wrong), is_server); }, &text), Code::kInvalidArgument);
    return text;
  };
  ExpectContains(text_of({files.Pem("nothing"), files.KeyFile("server"), ""}, true), files.Pem("nothing"));
  ExpectContains(text_of({files.KeyFile("server"), files.KeyFile("server"), ""}, true), "a certificate chain in PEM");
  ExpectContains(text_of({files.Pem("server"), files.KeyFile("client"), ""}, true), files.KeyFile("client"));
  ExpectContains(text_of({"", "", files.KeyFile("server")}, false), "certificates of authorities in PEM");
}

}  // namespace
}  // namespace monolith::rpc
