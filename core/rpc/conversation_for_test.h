// Shared by tests of conversations: a scripted service, and a peer that sends raw bytes. Tests only.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "rpc/client.h"
#include "rpc/protocol.h"
#include "rpc/server.h"

namespace monolith::rpc {

inline constexpr uint16_t kEcho = kFirstOwn, kFail = kFirstOwn + 1, kBlock = kFirstOwn + 2, kBulk = kFirstOwn + 3,
                          kPark = kFirstOwn + 4;
inline constexpr double kEndsHangs = 60.0;

inline std::span<const uint8_t> AsBytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

inline std::string AsText(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Echoes, fails or waits according to the kind of the call; counts the calls.
class EchoService : public Service {
 public:
  std::unique_ptr<Conversation> Open(const std::string&, const std::string& words, std::string* reply) override {
    if (words == "stranger") throw Error(Code::kFailedPrecondition, "echo: strangers are not spoken to");
    ++opened;
    *reply = "hello " + words;
    return std::make_unique<Echo>(*this);
  }

  std::atomic<int> opened{0}, closed{0}, heard{0}, blocked{0}, parked{0};
  std::atomic<bool> released{false};

 private:
  struct Echo : Conversation {
    explicit Echo(EchoService& owner) : service(owner) {}
    ~Echo() override { ++service.closed; }
    Answer Call(uint16_t kind, const std::string& head, std::span<const uint8_t> body) override {
      ++service.heard;
      if (kind == kFail) throw Error(Code::kNotFound, "echo: " + head);
      if (kind == kBlock) {
        ++service.blocked;
        while (!service.released) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      if (kind == kPark && !service.released) {
        ++service.parked;
        throw NotNow();
      }
      const size_t bytes = kind == kBulk ? std::stoull(head) : body.size();
      auto copy = std::make_shared<std::string>(AsText(body));
      copy->resize(bytes, 'x');
      return {head, {AsBytes(*copy)}, copy};
    }
    EchoService& service;
  };
};

struct Pair {
  explicit Pair(ServerOptions options = {}, ClientOptions client_options = {})
      : server(std::make_unique<Server>(options, service)),
        client({{"127.0.0.1", server->port()}}, {"you"}, client_options) {}

  std::shared_ptr<Call> Begin(uint16_t kind, std::string head, const std::string& body = {},
                              double seconds = kEndsHangs) {
    const auto owner = std::make_shared<std::string>(body);
    return client.Begin(0, {kind, 0, std::move(head), {AsBytes(*owner)}, owner}, {}, InSeconds(seconds));
  }

  EchoService service;
  std::unique_ptr<Server> server;
  Client client;
};

inline Code CodeOf(const std::function<void()>& call, std::string* text = nullptr) {
  try {
    call();
  } catch (const Error& error) {
    if (text != nullptr) *text = error.what();
    return error.code();
  }
  ADD_FAILURE() << "nothing was thrown";
  return Code::kInvalidArgument;
}

inline void Eventually(const std::function<bool()>& happens) {
  const Deadline end = InSeconds(kEndsHangs);
  while (!happens()) {
    ASSERT_LT(std::chrono::steady_clock::now(), end) << "it never did";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// A peer that sends bytes, not frames.
struct RawPeer {
  explicit RawPeer(uint16_t port) : socket(BeginConnect({"127.0.0.1", port}, 0)) {}
  void Say(std::string_view bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const iovec part{const_cast<char*>(bytes.data()) + sent, bytes.size() - sent};
      const Transfer transfer = Send(socket, {&part, 1});
      if (transfer.kind == Transfer::kBroken) return;
      if (transfer.kind == Transfer::kMoved) sent += transfer.bytes;
      if (transfer.kind != Transfer::kMoved) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  // Reads everything until the server closes the connection.
  std::string Hear() {
    std::string heard;
    uint8_t bytes[4096];
    const Deadline end = InSeconds(kEndsHangs);
    while (std::chrono::steady_clock::now() < end) {
      const Transfer transfer = Receive(socket, bytes);
      if (transfer.kind == Transfer::kBroken) return heard;
      if (transfer.kind == Transfer::kMoved) heard.append(reinterpret_cast<char*>(bytes), transfer.bytes);
      if (transfer.kind == Transfer::kMustWait) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ADD_FAILURE() << "the server did not hang up";
    return heard;
  }
  Socket socket;
};

inline std::string FrameText(uint16_t kind, const std::string& head, const std::string& body) {
  const HeaderBytes header = EncodeHeader({kind, 1, static_cast<uint32_t>(head.size()), body.size()});
  return AsText(header) + head + body;
}

}  // namespace monolith::rpc
