// Calls to servers, many in flight; one thread does all input and output.
//
// A channel is the connection to one server. Calls of a channel are answered in the order in which they were begun.
// When the connection breaks, the channel reconnects, sends its greeting, and resends every call that has no answer
// yet, in order: services treat a repeated call as the same call. A call ends with its answer, with the server's error,
// at its deadline, when there was no connection for `lost_after_seconds`, or with an error that a new connection cannot
// fix (token, version, a rejected greeting).
//
// Thread-safe. The memory that a call reads from and writes to must stay valid until the call has ended; GiveUp() ends
// it. Not for use in a forked child.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
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
  uint64_t window_bytes = uint64_t{256} << 20;  // of unanswered questions, per channel; above it Begin() waits
};

// A question in flight, and then its answer.
class Call {
 public:
  Call(OutgoingFrame question, std::span<uint8_t> place, Deadline deadline)
      : question_(std::move(question)), place_(place), deadline_(deadline) {}

  // Waits for the end. Returns the answer, or throws the error.
  const Frame& Wait();
  // Returns false if the call has not ended by then.
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

  mutable Mutex mutex_;
  mutable CondVar ended_;
  bool is_done_ GUARDED_BY(mutex_) = false;
  Frame answer_ GUARDED_BY(mutex_);
  std::optional<Code> error_ GUARDED_BY(mutex_);
  std::string error_text_
      GUARDED_BY(mutex_);  // not in an Error, whose copies share memory that several threads would free
};

class Client {
 public:
  // Connects on the first call. `words` are those that each channel sends in its greeting.
  Client(std::vector<Address> servers, std::vector<std::string> words, ClientOptions options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  int num_servers() const { return static_cast<int>(channels_.size()); }
  // Begins a call. `place`, if not empty, receives the answer's body, which must then have exactly its size. Waits
  // while the window is full, until the deadline. Throws kInvalidArgument for a server that does not exist.
  std::shared_ptr<Call> Begin(int server, OutgoingFrame question, std::span<uint8_t> place, Deadline deadline);
  // Cancels a call, and waits until its memory may be reused.
  void GiveUp(int server, const std::shared_ptr<Call>& call);
  // Changes the address of a server: calls in flight are sent to the new address, after a greeting with these words.
  void Move(int server, Address address, std::string words);
  // Returns the service's reply to the last greeting of a channel; empty before the first.
  std::string ReplyOf(int server) const;
  // Ends all calls with an error, and stops the thread. Idempotent.
  void Close();

 private:
  // Requests of other threads to the one that does input and output.
  struct Wish {
    int server;
    std::shared_ptr<Call> begin, give_up;
    std::optional<Address> address;
    std::string words;
  };

  void Run();
  void Grant(Wish& wish);
  void Ask(Wish wish) REQUIRES(mutex_);
  void RequireServer(int server) const;

  const ClientOptions options_;
  Socket epoll_, wake_event_;
  std::vector<std::unique_ptr<Channel>> channels_;  // owned by the thread, but for their counts

  mutable Mutex mutex_;
  CondVar room_;
  uint64_t next_call_ GUARDED_BY(mutex_) = 1;
  std::vector<Wish> wishes_ GUARDED_BY(mutex_);
  std::vector<uint64_t> bytes_under_way_ GUARDED_BY(mutex_);  // by channel
  std::vector<std::string> replies_ GUARDED_BY(mutex_);
  bool is_closed_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
  const int process_;  // a forked child does not have the thread
};

}  // namespace monolith::rpc
