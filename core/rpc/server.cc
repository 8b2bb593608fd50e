#include "rpc/server.h"

#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "base/error.h"
#include "rpc/protocol.h"

namespace monolith::rpc {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kListener = 0, kStop = 1, kWake = 2;
constexpr int kFramesInARow = 16;   // of one connection, before others are served
constexpr int kAcceptsInARow = 64;  // before the accepted ones are served: fewer than the limit of strangers
// A missed Wake() only causes a delay: parked calls are retried twice as often as guaranteed.
constexpr std::chrono::milliseconds kTryAgain(500);

Socket CheckedDescriptor(int descriptor, const char* what) {
  if (descriptor < 0) throw Error(Code::kUnavailable, std::string(what) + ": " + std::strerror(errno));
  return Socket(descriptor);
}

void Signal(const Socket& event) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(event.descriptor(), &one, sizeof(one));
}

size_t MostStrangers(int wanted) {
  rlimit limit;
  const bool is_known = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  const auto most = static_cast<size_t>(std::max(wanted, 1));
  return is_known ? std::clamp<size_t>(limit.rlim_cur / 8, 1, most) : most;
}

Code CodeOf(const std::exception& error) {
  if (const auto* known = dynamic_cast<const Error*>(&error)) return known->code();
  return dynamic_cast<const std::bad_alloc*>(&error) ? Code::kResourceExhausted : Code::kUnavailable;
}

}  // namespace

struct Server::Connection {
  Connection(uint64_t connection_id, Stream accepted, std::string name)
      : id(connection_id), stream(std::move(accepted)), peer(std::move(name)) {}

  const uint64_t id;
  Stream stream;
  const std::string peer;
  const Clock::time_point accepted_at = Clock::now();
  // Used by the thread that serves the connection.
  FrameReceiver receiver;
  FrameSender sender;
  std::unique_ptr<Conversation> conversation;  // null before the greeting
  bool is_last = false;                        // close after the answer was sent
  Clock::time_point refused_at;                // time of the rejection, if is_last
  bool has_call = false;                       // the received frame has no answer yet (NotNow)
  uint64_t wakes_seen = 0;                     // before that call was made
  // Written by the thread that serves the connection, read by the one that checks timeouts.
  std::atomic<bool> is_attended{false};
  std::atomic<uint64_t> progress{0};  // bytes in and out
  std::atomic<bool> must_move{true};  // a greeting, a frame or an answer is in progress
  std::atomic<bool> owes_answer{false};
  // Used by the thread that checks timeouts.
  uint64_t progress_seen = 0;
  Clock::time_point seen_at = Clock::now();
};

Server::Server(ServerOptions options, Service& service)
    : options_(std::move(options)),
      max_strangers_(MostStrangers(options_.max_strangers)),
      service_(service),
      listener_(Listen(options_.address)),
      epoll_(CheckedDescriptor(epoll_create1(EPOLL_CLOEXEC), "epoll")),
      stop_event_(CheckedDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
      wake_event_(CheckedDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
      port_(PortOf(listener_)) {
  if (options_.num_threads < 1) throw Error(Code::kInvalidArgument, "server: at least one thread is needed");
  epoll_event listening{EPOLLIN | EPOLLONESHOT, {.u64 = kListener}}, stop{EPOLLIN, {.u64 = kStop}};
  epoll_event wake{EPOLLIN, {.u64 = kWake}};
  epoll_ctl(epoll_.descriptor(), EPOLL_CTL_ADD, listener_.descriptor(), &listening);
  epoll_ctl(epoll_.descriptor(), EPOLL_CTL_ADD, stop_event_.descriptor(), &stop);
  epoll_ctl(epoll_.descriptor(), EPOLL_CTL_ADD, wake_event_.descriptor(), &wake);
  for (int i = 0; i < options_.num_threads; ++i) threads_.emplace_back([this] { Serve(); });
  threads_.emplace_back([this] { WatchPatience(); });
}

Server::~Server() { Stop(0.0); }

ServerStats Server::stats() const {
  MutexLock lock(mutex_);
  return {static_cast<int64_t>(connections_.size()), calls_.load(), refused_.load(),
          static_cast<int64_t>(parked_.size())};
}

void Server::Stop(double drain_seconds) {
  if (stopping_.exchange(true)) return;
  const auto end = Clock::now() + std::chrono::duration<double>(drain_seconds);
  {
    MutexLock lock(mutex_);
    // Answers are sent while the threads still serve; there is no event for it, so this polls.
    while (!IsQuietLocked() && Clock::now() < end) changed_.WaitFor(mutex_, std::chrono::milliseconds(5));
  }
  Signal(stop_event_);
  changed_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
  decltype(connections_) last;  // destroyed after the lock, as in Drop()
  MutexLock lock(mutex_);
  parked_.clear();
  strangers_.clear();
  last.swap(connections_);
  for (const auto& [id, connection] : last) connection->stream.SayGoodbye();
  listener_.Close();
}

bool Server::IsQuietLocked() const {
  return std::none_of(connections_.begin(), connections_.end(), [](const auto& each) {
    return each.second->is_attended.load() || each.second->owes_answer.load();
  });
}

void Server::Serve() {
  for (;;) {
    epoll_event event;
    const int count = epoll_wait(epoll_.descriptor(), &event, 1, -1);
    if (count < 0 && errno == EINTR) continue;
    if (count < 1 || event.data.u64 == kStop) return;
    if (event.data.u64 == kListener) {
      AcceptAll();
      continue;
    }
    const auto connection = event.data.u64 == kWake ? TakeWoken() : TakeReady(event.data.u64);
    if (connection) Attend(connection);
  }
}

std::shared_ptr<Server::Connection> Server::TakeReady(uint64_t id) {
  std::shared_ptr<Connection> gone;  // destroyed after the lock, as in Drop()
  MutexLock lock(mutex_);
  if (parked_.erase(id) == 0) return TakeLocked(id);
  gone = std::move(connections_.extract(id).mapped());  // the only event of a parked one is that the peer closed it
  strangers_.erase(id);
  return nullptr;
}

std::shared_ptr<Server::Connection> Server::TakeWoken() {
  MutexLock lock(mutex_);
  if (woken_.empty()) {
    uint64_t ignored;
    [[maybe_unused]] const ssize_t taken = read(wake_event_.descriptor(), &ignored, sizeof(ignored));
    return nullptr;
  }
  const uint64_t id = woken_.back();
  woken_.pop_back();
  parked_.erase(id);  // it may have been parked again by a thread that got an earlier event
  return TakeLocked(id);
}

std::shared_ptr<Server::Connection> Server::TakeLocked(uint64_t id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return nullptr;  // dropped after the event
  // A connection that is served already was woken and closed concurrently; its thread sees both. The exchange also
  // makes the writes of the last thread that served it visible to this one.
  return found->second->is_attended.exchange(true) ? nullptr : found->second;
}

void Server::AcceptAll() {
  bool is_exhausted = false;
  for (int count = 0; count < kAcceptsInARow && !stopping_; ++count) {
    std::optional<Accepted> accepted = Accept(listener_, &is_exhausted);
    if (!accepted) break;
    Stream stream;
    try {
      stream = Stream(std::move(accepted->socket), options_.tls);
    } catch (const Error&) {  // no memory for TLS
      ++refused_;
      continue;
    }
    std::vector<std::shared_ptr<Connection>> excess;  // destroyed after the lock, as in Drop()
    MutexLock lock(mutex_);
    if (static_cast<int>(connections_.size()) >= options_.max_connections) {
      ++refused_;
      continue;  // closes the socket
    }
    AddLocked(std::move(stream), std::move(accepted->peer));
    excess = TakeExcessLocked();
  }
  is_exhausted_ = is_exhausted;
  if (!is_exhausted) ListenOn();  // otherwise epoll would report the same connection in a loop
}

void Server::AddLocked(Stream stream, std::string peer) {
  const uint64_t id = next_connection_++;
  const auto made = std::make_shared<Connection>(id, std::move(stream), std::move(peer));
  connections_.emplace(id, made);
  strangers_.insert(id);
  Arm(*made, EPOLLIN, EPOLL_CTL_ADD);
}

void Server::Adopt(Socket socket, std::string peer) {
  SetNonBlocking(socket);
  std::vector<std::shared_ptr<Connection>> excess;  // destroyed after the lock, as in Drop()
  MutexLock lock(mutex_);
  if (stopping_) throw Error(Code::kFailedPrecondition, "server: it has stopped");
  if (static_cast<int>(connections_.size()) >= options_.max_connections) {
    ++refused_;
    throw Error(Code::kResourceExhausted,
                "server: " + std::to_string(connections_.size()) + " connections are open, no more are accepted");
  }
  AddLocked(Stream(std::move(socket)), std::move(peer));
  excess = TakeExcessLocked();
}

std::vector<std::shared_ptr<Server::Connection>> Server::TakeExcessLocked() {
  std::vector<std::shared_ptr<Connection>> excess;
  for (auto id = strangers_.begin(); id != strangers_.end() && strangers_.size() > max_strangers_;) {
    const auto found = connections_.find(*id);
    if (found->second->is_attended) {  // a thread is about to answer it
      ++id;
      continue;
    }
    ++refused_;
    excess.push_back(std::move(found->second));
    connections_.erase(found);
    id = strangers_.erase(id);
  }
  return excess;
}

void Server::ListenOn() {
  epoll_event again{EPOLLIN | EPOLLONESHOT, {.u64 = kListener}};
  if (!stopping_) epoll_ctl(epoll_.descriptor(), EPOLL_CTL_MOD, listener_.descriptor(), &again);
}

void Server::Attend(const std::shared_ptr<Connection>& connection) {
  Next next = Next::kGone;
  try {
    next = Converse(*connection);
  } catch (const std::exception&) {  // not even the rejection could be sent
    ++refused_;
  }
  connection->progress = connection->receiver.num_received() + connection->sender.num_sent();
  connection->must_move = next != Next::kParked && (connection->conversation == nullptr ||
                                                    connection->receiver.is_inside() || !connection->sender.empty());
  const bool owes_answer = !connection->sender.empty();
  connection->owes_answer = owes_answer;
  if (next == Next::kParked) return Park(*connection);
  const bool waits_for_bytes = next == Next::kWaits && !owes_answer;
  const uint32_t events = waits_for_bytes ? connection->stream.EventsToReceive() : EPOLLOUT;
  connection->is_attended = false;  // from here on another thread may serve it
  if (next == Next::kWaits) {
    Arm(*connection, events, EPOLL_CTL_MOD);
  } else {
    Drop(*connection);
  }
}

Server::Next Server::Converse(Connection& connection) {
  if (connection.stream.is_shaking() && !connection.is_last) {
    const Transfer shaken = connection.stream.Shake();
    if (shaken.kind == Transfer::kMustWait) return Next::kWaits;
    if (shaken.kind == Transfer::kBroken) {
      BeLast(connection);
      return HearOut(connection);  // the reason has been sent, as an alert
    }
  }
  for (int frames = 0; frames < kFramesInARow; ++frames) {
    // Back-pressure: no further call is read from a peer that does not receive its answers.
    const FrameSender::State sent = connection.sender.Send(connection.stream);
    if (sent == FrameSender::State::kBroken) return Next::kGone;
    if (sent == FrameSender::State::kWaits) return Next::kWaits;
    if (connection.is_last) return HearOut(connection);
    FrameReceiver::State received = FrameReceiver::State::kComplete;
    try {
      const FrameLimits greeting{kGreetingBytes, 0};
      const FrameLimits& limits = connection.conversation ? options_.limits : greeting;
      if (!connection.has_call) received = connection.receiver.Receive(connection.stream, limits, nullptr);
    } catch (const std::exception& error) {
      Refuse(connection, connection.receiver.frame(), error);
      continue;
    }
    if (received == FrameReceiver::State::kBroken) return Next::kGone;
    if (received == FrameReceiver::State::kWaits) return Next::kWaits;
    if (stopping_) return Next::kGone;
    connection.has_call = !AnswerFrame(connection);
    if (connection.has_call) return Next::kParked;
    connection.receiver.Reset();
  }
  return Next::kWaits;
}

Server::Next Server::HearOut(Connection& connection) {
  // Closing a socket with unread bytes would discard the answer before the peer reads it.
  connection.stream.EndSending();
  // WatchPatience() does not detect a peer that never stops sending.
  const std::chrono::duration<double> listened = Clock::now() - connection.refused_at;
  if (listened.count() > options_.patience_seconds) return Next::kGone;
  uint8_t ignored[4096];
  for (int pieces = 0; pieces < kFramesInARow; ++pieces) {
    const Transfer transfer = rpc::Receive(connection.stream.socket(), ignored);
    if (transfer.kind == Transfer::kBroken) return Next::kGone;
    if (transfer.kind == Transfer::kMustWait) break;
  }
  return Next::kWaits;  // until the peer closes the connection or the timeout expires, however much it sends
}

bool Server::AnswerFrame(Connection& connection) {
  const Frame& frame = connection.receiver.frame();
  const uint16_t kind = frame.header.kind;
  connection.wakes_seen = num_wakes_;
  try {
    Answer answer = connection.conversation == nullptr ? Greet(connection, frame)
                                                       : connection.conversation->Call(kind, frame.head, frame.body);
    connection.sender.Add(
        {kind, frame.header.call, std::move(answer.head), std::move(answer.body), std::move(answer.owner)});
  } catch (const NotNow&) {
    return false;
  } catch (const std::exception& error) {
    if (connection.conversation == nullptr) {
      Refuse(connection, frame, error);
      return true;
    }
    connection.sender.Add({kError, frame.header.call, EncodeError(CodeOf(error), error.what()), {}, nullptr});
  }
  ++calls_;
  return true;
}

Answer Server::Greet(Connection& connection, const Frame& frame) {
  if (frame.header.kind != kGreeting) throw Error(Code::kDataLoss, "server: a greeting was expected first");
  const Greeting greeting = DecodeGreeting(frame.head);
  if (!IsSameToken(greeting.token, options_.token)) {
    throw Error(Code::kPermissionDenied, options_.token.empty()
                                             ? "server: it wants no token, one was given; leave it out"
                                             : "server: the token is wrong or missing");
  }
  std::string reply;
  connection.conversation = service_.Open(connection.peer, greeting.words, &reply);
  MONOLITH_CHECK(connection.conversation != nullptr);
  MutexLock lock(mutex_);
  strangers_.erase(connection.id);
  return {std::move(reply), {}, nullptr};
}

void Server::Refuse(Connection& connection, const Frame& frame, const std::exception& reason) {
  connection.sender.Add({kError, frame.header.call, EncodeError(CodeOf(reason), reason.what()), {}, nullptr});
  BeLast(connection);
}

void Server::BeLast(Connection& connection) {
  ++refused_;
  connection.is_last = true;
  connection.refused_at = Clock::now();
}

void Server::Arm(const Connection& connection, uint32_t events, int operation) {
  epoll_event event{events | EPOLLONESHOT | EPOLLRDHUP, {.u64 = connection.id}};
  epoll_ctl(epoll_.descriptor(), operation, connection.stream.socket().descriptor(), &event);
}

void Server::Drop(const Connection& connection) {
  std::shared_ptr<Connection> last;  // destroyed after the lock: a conversation may be slow to end, and call Wake()
  MutexLock lock(mutex_);
  const auto found = connections_.find(connection.id);
  if (found == connections_.end()) return;
  last = std::move(found->second);
  connections_.erase(found);
  strangers_.erase(connection.id);
  changed_.NotifyAll();
}

void Server::Park(Connection& connection) {
  MutexLock lock(mutex_);
  connection.is_attended = false;
  if (connections_.count(connection.id) == 0) return;  // the server has stopped
  if (connection.wakes_seen != num_wakes_) {           // a wake-up may have come between the call and here
    woken_.push_back(connection.id);
    return Signal(wake_event_);
  }
  parked_.insert(connection.id);
  Arm(connection, 0, EPOLL_CTL_MOD);
}

void Server::Wake() {
  MutexLock lock(mutex_);
  WakeLocked();
}

void Server::WakeLocked() {
  ++num_wakes_;
  if (parked_.empty()) return;
  woken_.insert(woken_.end(), parked_.begin(), parked_.end());
  parked_.clear();
  Signal(wake_event_);
}

void Server::WatchPatience() {
  const auto patience = std::chrono::duration<double>(options_.patience_seconds);
  const auto handshake = std::chrono::duration<double>(options_.handshake_seconds);
  const auto pause = std::min<std::chrono::duration<double>>(std::min(patience, handshake) / 4, kTryAgain);
  auto woken_at = Clock::now();
  MutexLock lock(mutex_);
  while (!stopping_) {
    changed_.WaitFor(mutex_, pause);
    const auto now = Clock::now();
    if (now - woken_at >= kTryAgain) {
      if (is_exhausted_.exchange(false)) ListenOn();
      WakeLocked();
      woken_at = now;
    }
    std::vector<std::shared_ptr<Connection>> lost;
    for (const auto& [id, connection] : connections_) {
      const bool is_stranger = strangers_.count(id) != 0;
      if (is_stranger && !connection->is_attended && now - connection->accepted_at > handshake) {
        lost.push_back(connection);
        continue;
      }
      // The socket only wakes up for many bytes of a large body; those that have arrived count as progress.
      const uint64_t progress = connection->progress + (connection->must_move ? connection->stream.NumWaiting() : 0);
      if (!connection->must_move || connection->is_attended || progress != connection->progress_seen) {
        connection->progress_seen = progress;
        connection->seen_at = now;
      } else if (now - connection->seen_at > patience) {
        lost.push_back(connection);
      }
    }
    for (const auto& connection : lost) {
      ++refused_;
      connections_.erase(connection->id);
      strangers_.erase(connection->id);
    }
    lock.Unlock();
    lost.clear();
    lock.Lock();
  }
}

}  // namespace monolith::rpc
