// A connection to one server that reconnects, as driven by the client's thread. Owned by that thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "rpc/client.h"
#include "rpc/frame_stream.h"
#include "rpc/stream.h"

namespace monolith::rpc {

class Channel {
 public:
  // Called with the bytes of a question that has ended, and with the reply to a greeting.
  using OnEnd = std::function<void(uint64_t bytes)>;
  using OnReply = std::function<void(const std::string& reply)>;

  Channel(int epoll, uint64_t event_id, Address address, std::string words, const ClientOptions& options, OnEnd on_end,
          OnReply on_reply);

  void Begin(std::shared_ptr<Call> call);
  void GiveUp(const std::shared_ptr<Call>& call);
  void Move(Address address, std::string words);
  // Sends and receives what is possible now. `events` are those of epoll; 0: none.
  void Attend(uint32_t events);
  // Time of the next call of Attend() without an event.
  Deadline next_look() const;
  // Ends all calls with the error.
  void Fail(const Error& error);

 private:
  enum class State { kIdle, kConnecting, kShaking, kGreeting, kReady };

  void Connect();
  void Settle(uint32_t events);
  void Shake();
  void Greet();
  void SendAll();
  void ReceiveAll();
  void TakeFrame(Frame frame);
  std::span<uint8_t> PlaceOf(const FrameHeader& header) const;
  void EndLate();
  // Time at which a server without a connection counts as lost.
  Deadline lost_at() const;
  // Drops a connection that cannot be used any more; the calls wait for the next one.
  void Break(const std::string& reason);
  void BreakStream();
  void Disconnect();
  void Watch();
  void EndFirst(Frame answer);
  void EndFirst(const Error& error);
  std::string Named(const std::string& text) const { return address_.Text() + ": " + text; }

  const int epoll_;
  const uint64_t event_id_;
  Address address_;
  std::string words_;
  const ClientOptions& options_;
  const OnEnd on_end_;
  const OnReply on_reply_;

  State state_ = State::kIdle;
  Stream stream_;
  uint32_t watched_ = 0;
  FrameReceiver receiver_;
  FrameSender sender_;
  std::deque<std::shared_ptr<Call>> waiting_;  // for an answer, in order
  size_t num_sent_ = 0;                        // number of them passed to the sender on this connection
  int attempt_ = 0;
  double backoff_ = 0.0;
  Deadline retry_at_ = Deadline::min();
  Deadline shaken_until_ = Deadline::max();
  std::optional<Deadline> broken_since_;
  std::string last_trouble_;  // why there is no connection; empty while there is one
};

}  // namespace monolith::rpc
