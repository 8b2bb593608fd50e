// Answers calls from other processes over TCP, with a bounded number of threads.
//
// Idle connections wait in the operating system, not in threads: ten thousand of them cost some memory each. A
// connection is served by one thread at a time, one call after another in order of arrival; calls of several
// connections run concurrently. A peer that sends garbage, frames above the limits or nothing for long in the middle of
// a frame gets an error, if it still reads, and is disconnected; nothing that a peer sends can crash the server. Peers
// that have not sent the token, strangers, get a small number of connections and a short timeout, so that they block no
// other client.
//
// A call that cannot be answered yet is parked: its thread serves other connections, and the call is retried later.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/mutex.h"
#include "rpc/frame_stream.h"
#include "rpc/socket.h"
#include "rpc/stream.h"

namespace monolith::rpc {

struct Answer {
  std::string head;
  std::vector<std::span<const uint8_t>> body;
  std::shared_ptr<const void> owner;  // keeps the body's parts alive
};

// Thrown by a call that cannot be answered yet, and has changed nothing: the same call is made again after
// Server::Wake(), and at least once a second. Until then the server sends nothing on the connection, no thread waits
// for it, and its timeout does not run; if the peer disconnects meanwhile, the call is discarded.
struct NotNow {};

// The service's state of a connection. Called by one thread at a time; destroyed when the peer has disconnected.
class Conversation {
 public:
  virtual ~Conversation() = default;
  // Answers a call. An exception becomes the answer, and the conversation continues; except for NotNow, see there.
  virtual Answer Call(uint16_t kind, const std::string& head, std::span<const uint8_t> body) = 0;
};

class Service {
 public:
  virtual ~Service() = default;
  // Opens a conversation with a peer that sent the token. An exception is sent to the peer, which is then disconnected.
  // `reply` is the service's own answer to the greeting. Thread-safe.
  virtual std::unique_ptr<Conversation> Open(const std::string& peer, const std::string& words, std::string* reply) = 0;
};

inline constexpr int kMostStrangers = 128;
inline constexpr int kHandshakeSeconds = 10;

struct ServerOptions {
  Address address{"127.0.0.1", 0};
  int num_threads = 2;
  std::shared_ptr<const TlsContext> tls;  // null: connections to the address are not encrypted
  std::string token;                      // empty: no authentication
  FrameLimits limits;
  int max_connections = 16'384;
  // Limit of peers that have not authenticated, also at most an eighth of the file descriptors of this process. Above
  // it, the oldest of them is disconnected.
  int max_strangers = kMostStrangers;
  double handshake_seconds = kHandshakeSeconds;  // from a connection to its greeting, however many bytes arrive
  double patience_seconds = 30.0;                // for the rest of a frame that has begun
};

struct ServerStats {
  int64_t connections = 0;  // current number
  int64_t calls = 0;        // answered
  int64_t refused = 0;      // peers disconnected for garbage, token, limits, timeouts, or as excess strangers
  int64_t parked = 0;       // current number of connections whose call was answered with NotNow
};

class Server {
 public:
  // Listens when it returns. The service outlives the server. Throws kUnreachable if the address cannot be bound,
  // kUnavailable if the system has no descriptor left.
  Server(ServerOptions options, Service& service);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const { return port_; }
  ServerStats stats() const;
  // Serves a connection that another port has accepted, and secured if need be; it counts as any other. Throws
  // kFailedPrecondition if the server has stopped, kResourceExhausted if it has enough connections.
  void Adopt(Socket socket, std::string peer);
  // Retries parked calls, including those that are just being parked. Returns immediately. Thread-safe, also within
  // calls.
  void Wake();
  // Stops accepting connections and calls, waits at most this long for running calls and their answers, and disconnects
  // all peers, with parked calls too: clients retry, elsewhere or later. Idempotent.
  void Stop(double drain_seconds);

 private:
  struct Connection;
  enum class Next { kWaits, kParked, kGone };

  void Serve();
  // Returns the connection of an event, which this thread now owns; null: there is nothing to do.
  std::shared_ptr<Connection> TakeReady(uint64_t id);
  std::shared_ptr<Connection> TakeWoken();
  std::shared_ptr<Connection> TakeLocked(uint64_t id) REQUIRES(mutex_);
  // Whether no connection is served or has an answer to send.
  bool IsQuietLocked() const REQUIRES(mutex_);
  void AcceptAll();
  void AddLocked(Stream stream, std::string peer) REQUIRES(mutex_);
  // Removes the oldest strangers above the limit from the connections; the caller destroys them, without the lock.
  std::vector<std::shared_ptr<Connection>> TakeExcessLocked() REQUIRES(mutex_);
  void ListenOn();
  void WatchPatience();
  // Serves a connection that is readable or writable; afterwards the connection waits again, is parked, or is dropped.
  void Attend(const std::shared_ptr<Connection>& connection);
  Next Converse(Connection& connection);
  Next HearOut(Connection& connection);
  void BeLast(Connection& connection);
  // Returns false for NotNow.
  bool AnswerFrame(Connection& connection);
  Answer Greet(Connection& connection, const Frame& frame);
  void Refuse(Connection& connection, const Frame& frame, const std::exception& reason);
  void Arm(const Connection& connection, uint32_t events, int operation);
  void Drop(const Connection& connection);
  void Park(Connection& connection);
  void WakeLocked() REQUIRES(mutex_);

  const ServerOptions options_;
  const size_t max_strangers_;
  Service& service_;
  Socket listener_, epoll_, stop_event_, wake_event_;
  uint16_t port_ = 0;

  std::atomic<bool> stopping_{false};
  std::atomic<bool> is_exhausted_{false};  // out of file descriptors: the listener pauses until WatchPatience() retries
  std::atomic<int64_t> calls_{0}, refused_{0};
  std::atomic<uint64_t> num_wakes_{0};  // written under the mutex
  mutable Mutex mutex_;
  CondVar changed_;
  std::unordered_map<uint64_t, std::shared_ptr<Connection>> connections_ GUARDED_BY(mutex_);
  std::set<uint64_t> strangers_
      GUARDED_BY(mutex_);  // connections that have not sent their greeting; the first is the oldest
  uint64_t next_connection_ GUARDED_BY(mutex_) = 3;  // 0 is the listener, 1 the stop event, 2 the wake event
  std::unordered_set<uint64_t> parked_ GUARDED_BY(mutex_);
  std::vector<uint64_t> woken_ GUARDED_BY(mutex_);  // parked until now; wake_event_ is set while there are any

  std::vector<std::thread> threads_;
};

}  // namespace monolith::rpc
