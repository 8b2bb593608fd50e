// Calls to servers, many under way at once; one thread moves all bytes.
//
// A channel leads to one server. Calls of a channel are answered in the order in which they were begun. When the
// connection breaks, the channel connects again, greets again, and sends every call that has no answer yet once more,
// in order: services take a repeated call for the same call. A call ends with its answer, with the server's error, at
// its deadline, when there was no connection for so long that the server counts as lost, or with an error that no new
// connection mends (token, version, a refused greeting).
//
// Any thread may call. What a call reads from and writes to must live until the call has ended; GiveUp() ends it. Not
// for use in a forked child.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "rpc/frame_stream.h"
#include "rpc/socket.h"

namespace monolith::rpc {

class Channel;

using Deadline = std::chrono::steady_clock::time_point;
Deadline InSeconds(double seconds);

struct ClientOptions {
  std::string token;
  FrameLimits limits;
  double first_backoff_seconds = 0.02, last_backoff_seconds = 2.0;      // between attempts to connect, doubling
  double lost_after_seconds = std::numeric_limits<double>::infinity();  // without a connection: then calls end
  uint64_t window_bytes = uint64_t{256} << 20;  // of questions without an answer, per channel; above it Begin() waits
};

// A question that is under way, and then its answer.
class Call {
 public:
  Call(OutgoingFrame question, std::span<uint8_t> place, Deadline deadline)
      : question_(std::move(question)), place_(place), deadline_(deadline) {}

  // Waits for the end. Throws how it ended, unless with an answer.
  const Frame& Wait();
  // False: it has not ended by then.
  bool WaitUntil(Deadline deadline) const;
  bool is_done() const;

 private:
  friend class Channel;
  friend class Client;

  void End(Frame answer);
  void End(const Error& error);

  const OutgoingFrame question_;
  const std::span<uint8_t> place_;  // of the answer's body; empty: the answer has memory of its own
  const Deadline deadline_;

  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable ended_;
  bool is_done_ = false;
  Frame answer_;
  std::optional<Code> error_;
  std::string error_text_;  // not in an Error: copies of one share memory, which threads would free beside each other
};

class Client {
 public:
  // Connects when a call wants it. `words` are what each channel greets its service with.
  Client(std::vector<Address> servers, std::vector<std::string> words, ClientOptions options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  int num_servers() const { return static_cast<int>(channels_.size()); }
  // Begins a call. `place`, if not empty, receives the answer's body, which must then have exactly its size. Waits
  // while the window is full, until the deadline. Throws kInvalidArgument for a server that is not there.
  std::shared_ptr<Call> Begin(int server, OutgoingFrame question, std::span<uint8_t> place, Deadline deadline);
  // Ends a call that nobody wants any more, and waits until its memory is free to use.
  void GiveUp(int server, const std::shared_ptr<Call>& call);
  // The server has moved: calls under way go to the new address, after a greeting with these words.
  void Move(int server, Address address, std::string words);
  // What the service of a channel answered to its last greeting; empty before it did.
  std::string ReplyOf(int server) const;
  // Ends all calls with an error, and the thread. Calling it again does nothing.
  void Close();

 private:
  // What other threads want of the one that moves bytes.
  struct Wish {
    int server;
    std::shared_ptr<Call> begin, give_up;
    std::optional<Address> address;
    std::string words;
  };

  void Run();
  void Grant(Wish& wish);
  void Ask(Wish wish);
  void RequireServer(int server) const;

  const ClientOptions options_;
  Socket epoll_, wake_event_;
  std::vector<std::unique_ptr<Channel>> channels_;  // the thread's own, but for their counts
  uint64_t next_call_ = 1;

  mutable std::mutex mutex_;  // guards what follows, and next_call_
  std::condition_variable room_;
  std::vector<Wish> wishes_;
  std::vector<uint64_t> bytes_under_way_;  // by channel
  std::vector<std::string> replies_;
  bool is_closed_ = false;
  std::thread thread_;
  const int process_;  // a forked child has no thread that moves bytes
};

}  // namespace monolith::rpc
