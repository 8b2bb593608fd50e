// Answers calls from other processes over TCP, by a bounded number of threads.
//
// Connections wait in the operating system, not in threads: ten thousand idle ones cost some memory each. A connection
// is served by one thread at a time, a call after another in the order in which they came; calls of several connections
// run at once. A peer that sends garbage, frames above the limits or nothing for long in the middle of a frame is told
// so, where it still listens, and hung up on; nothing that a peer sends takes the server down. Peers that have not
// shown the token, strangers, have a small number of connections and little time, so that they block no other client.
//
// A call that cannot be answered yet is parked: its thread goes on to other connections, and it is tried again later.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "rpc/frame_stream.h"
#include "rpc/socket.h"

namespace monolith::rpc {

struct Answer {
  std::string head;
  std::vector<std::span<const uint8_t>> body;
  std::shared_ptr<const void> owner;  // of the body's parts
};

// Thrown by a call that cannot be answered yet, and has changed nothing: the same call is made again after
// Server::Wake(), and at least once a second. Until then the connection says nothing more, no thread waits for it, and
// patience does not end; a peer that hangs up meanwhile is forgotten together with its call.
struct NotNow {};

// What a connection is to the service. Called by one thread at a time; destroyed when the peer is gone.
class Conversation {
 public:
  virtual ~Conversation() = default;
  // The answer to a call. What it throws becomes the answer, and the conversation goes on; but for NotNow, see there.
  virtual Answer Call(uint16_t kind, const std::string& head, std::span<const uint8_t> body) = 0;
};

class Service {
 public:
  virtual ~Service() = default;
  // A peer that has the token says hello; what it throws is said to the peer, which is hung up on. `reply` is the
  // service's own answer to the greeting. Any thread.
  virtual std::unique_ptr<Conversation> Open(const std::string& peer, const std::string& words, std::string* reply) = 0;
};

inline constexpr int kMostStrangers = 128;
inline constexpr int kHandshakeSeconds = 10;

struct ServerOptions {
  Address address{"127.0.0.1", 0};
  int num_threads = 2;
  std::string token;  // empty: everybody is welcome
  FrameLimits limits;
  int max_connections = 16'384;
  // Peers that have not authenticated: at most this number, and at most an eighth of the descriptors that this process
  // may have. One more, and the oldest of them is hung up on.
  int max_strangers = kMostStrangers;
  double handshake_seconds = kHandshakeSeconds;  // from a connection to its greeting, however many bytes come
  double patience_seconds = 30.0;                // for the rest of a frame that has begun
};

struct ServerStats {
  int64_t connections = 0;  // at the moment
  int64_t calls = 0;        // answered
  int64_t refused = 0;      // peers hung up on: garbage, token, limits, patience, strangers in excess
  int64_t parked = 0;       // connections at the moment, whose call was answered with NotNow
};

class Server {
 public:
  // Listens when it returns. The service outlives it. Throws kUnavailable where the address cannot be bound.
  Server(ServerOptions options, Service& service);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const { return port_; }
  ServerStats stats() const;
  // Parked calls are tried again, also those that are just being parked. Returns at once. Any thread, calls too.
  void Wake();
  // Takes no further connections and calls, lets calls that run end and their answers leave for at most this long, and
  // hangs up, on parked calls too: whoever asked asks again, elsewhere or later. Calling it again does nothing.
  void Stop(double drain_seconds);

 private:
  struct Connection;
  enum class Next { kWaits, kParked, kGone };

  void Serve();
  // The connection of an event, which is now this thread's; null: nothing is to be done.
  std::shared_ptr<Connection> TakeReady(uint64_t id);
  std::shared_ptr<Connection> TakeWoken();
  std::shared_ptr<Connection> TakeLocked(uint64_t id);
  void AcceptAll();
  // Takes strangers above the limit out of the connections, the oldest first; destroyed by the caller, without the
  // lock.
  std::vector<std::shared_ptr<Connection>> TakeExcessLocked();
  void ListenOn();
  void WatchPatience();
  // One connection that has something to say or room to write; afterwards it waits again, is parked, or is gone.
  void Attend(const std::shared_ptr<Connection>& connection);
  Next Converse(Connection& connection);
  Next HearOut(Connection& connection);
  // False: not now.
  bool AnswerFrame(Connection& connection);
  Answer Greet(Connection& connection, const Frame& frame);
  void Refuse(Connection& connection, const Frame& frame, const std::exception& reason);
  void Arm(const Connection& connection, uint32_t events, int operation);
  void Drop(const Connection& connection);
  void Park(Connection& connection);
  void WakeLocked();

  const ServerOptions options_;
  const size_t max_strangers_;
  Service& service_;
  Socket listener_, epoll_, stop_event_, wake_event_;
  uint16_t port_ = 0;

  std::atomic<bool> stopping_{false};
  std::atomic<bool> is_exhausted_{false};  // no descriptor was left: the listener rests until somebody looks again
  std::atomic<int64_t> calls_{0}, refused_{0};
  std::atomic<uint64_t> num_wakes_{0};  // written under the mutex
  mutable std::mutex mutex_;            // guards what follows
  std::condition_variable changed_;
  std::unordered_map<uint64_t, std::shared_ptr<Connection>> connections_;
  std::set<uint64_t> strangers_;  // of the connections, those that have not greeted; the first is the oldest
  uint64_t next_connection_ = 3;  // 0 is the listener, 1 the event that stops, 2 the one that wakes
  std::unordered_set<uint64_t> parked_;
  std::vector<uint64_t> woken_;  // parked until now; wake_event_ is set while there are any

  std::vector<std::thread> threads_;
};

}  // namespace monolith::rpc
