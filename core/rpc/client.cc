#include "rpc/client.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "rpc/channel.h"

namespace monolith::rpc {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kWake = ~uint64_t{0};

Socket CheckedDescriptor(int descriptor, const char* what) {
  if (descriptor < 0) throw Error(Code::kUnavailable, std::string(what) + ": " + std::strerror(errno));
  return Socket(descriptor);
}

// Timeout for epoll in milliseconds, rounded up to avoid a busy loop just before the deadline.
int MillisecondsUntil(Deadline deadline) {
  if (deadline == Deadline::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

}  // namespace

Deadline InSeconds(double seconds) {
  constexpr double kAYear = 365 * 86400.0;
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::clamp(seconds, 0.0, kAYear)));
}

const Frame& Call::Wait() {
  MutexLock lock(mutex_);
  while (!is_done_) ended_.Wait(mutex_);
  if (error_) throw Error(*error_, error_text_);
  return answer_;
}

bool Call::WaitUntil(Deadline deadline) const {
  MutexLock lock(mutex_);
  while (!is_done_) {
    if (!ended_.WaitUntil(mutex_, deadline)) return is_done_;
  }
  return true;
}

bool Call::is_done() const {
  MutexLock lock(mutex_);
  return is_done_;
}

void Call::End(Frame answer) {
  MutexLock lock(mutex_);
  answer_ = std::move(answer);
  is_done_ = true;
  ended_.NotifyAll();
}

void Call::End(const Error& error) {
  MutexLock lock(mutex_);
  error_ = error.code();
  error_text_ = error.what();
  is_done_ = true;
  ended_.NotifyAll();
}

Client::Client(std::vector<Address> servers, std::vector<std::string> words, ClientOptions options)
    : options_(std::move(options)),
      epoll_(CheckedDescriptor(epoll_create1(EPOLL_CLOEXEC), "epoll")),
      wake_event_(CheckedDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
      bytes_under_way_(servers.size()),
      replies_(servers.size()),
      process_(getpid()) {
  if (servers.empty() || servers.size() != words.size()) {
    throw Error(Code::kInvalidArgument, "client: at least one server, and words for each, are needed");
  }
  epoll_event wake{EPOLLIN, {.u64 = kWake}};
  epoll_ctl(epoll_.descriptor(), EPOLL_CTL_ADD, wake_event_.descriptor(), &wake);
  for (size_t number = 0; number < servers.size(); ++number) {
    const auto on_end = [this, number](uint64_t bytes) {
      MutexLock lock(mutex_);
      bytes_under_way_[number] -= bytes;
      room_.NotifyAll();
    };
    const auto on_reply = [this, number](const std::string& reply) {
      MutexLock lock(mutex_);
      replies_[number] = reply;
    };
    channels_.push_back(std::make_unique<Channel>(epoll_.descriptor(), number, std::move(servers[number]),
                                                  std::move(words[number]), options_, on_end, on_reply));
  }
  thread_ = std::thread([this] { Run(); });
}

Client::~Client() { Close(); }

std::shared_ptr<Call> Client::Begin(int server, OutgoingFrame question, std::span<uint8_t> place, Deadline deadline) {
  RequireServer(server);
  const uint64_t bytes = kHeaderBytes + question.head.size() + question.NumBodyBytes();
  MutexLock lock(mutex_);
  uint64_t& under_way = bytes_under_way_[static_cast<size_t>(server)];
  // A question that is larger than the window is sent alone.
  const auto is_full = [&] { return under_way != 0 && under_way + bytes > options_.window_bytes; };
  while (!is_closed_ && is_full()) {
    if (room_.WaitUntil(mutex_, deadline) || is_closed_ || !is_full()) continue;
    throw Error(Code::kDeadlineExceeded, "client: " + std::to_string(under_way) +
                                             " bytes wait for the answers of server " + std::to_string(server) +
                                             ", and the server accepted no more in time");
  }
  if (is_closed_) throw Error(Code::kFailedPrecondition, "client: it is closed");
  under_way += bytes;
  question.call = next_call_++;
  auto call = std::make_shared<Call>(std::move(question), place, deadline);
  Ask({server, call, nullptr, std::nullopt, {}});
  return call;
}

void Client::GiveUp(int server, const std::shared_ptr<Call>& call) {
  RequireServer(server);
  {
    MutexLock lock(mutex_);
    if (!is_closed_) Ask({server, nullptr, call, std::nullopt, {}});
  }
  MutexLock lock(call->mutex_);
  while (!call->is_done_) call->ended_.Wait(call->mutex_);
}

void Client::Move(int server, Address address, std::string words) {
  RequireServer(server);
  MutexLock lock(mutex_);
  Ask({server, nullptr, nullptr, std::move(address), std::move(words)});
}

std::string Client::ReplyOf(int server) const {
  RequireServer(server);
  MutexLock lock(mutex_);
  return replies_[static_cast<size_t>(server)];
}

void Client::Close() {
  if (getpid() != process_) {
    if (thread_.joinable()) thread_.detach();
    return;
  }
  {
    MutexLock lock(mutex_);
    if (is_closed_) return;
    is_closed_ = true;
    Ask({});
    room_.NotifyAll();
  }
  thread_.join();
}

void Client::RequireServer(int server) const {
  if (server < 0 || server >= num_servers()) {
    throw Error(Code::kInvalidArgument, "client: there are " + std::to_string(num_servers()) + " servers, got number " +
                                            std::to_string(server));
  }
}

void Client::Ask(Wish wish) {
  const bool sleeps = wishes_.empty();  // otherwise the thread was woken already
  wishes_.push_back(std::move(wish));
  const uint64_t one = 1;
  if (sleeps) [[maybe_unused]]
    const ssize_t written = write(wake_event_.descriptor(), &one, sizeof(one));
}

void Client::Run() {
  std::vector<Wish> wishes;
  for (;;) {
    Deadline next = Deadline::max();
    for (const auto& channel : channels_) next = std::min(next, channel->next_look());
    epoll_event events[16];
    const int count = epoll_wait(epoll_.descriptor(), events, 16, MillisecondsUntil(next));
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 != kWake) channels_[events[i].data.u64]->Attend(events[i].events);
    }
    bool is_closed;
    {
      uint64_t ignored;
      [[maybe_unused]] const ssize_t taken = read(wake_event_.descriptor(), &ignored, sizeof(ignored));
      MutexLock lock(mutex_);
      wishes.swap(wishes_);
      is_closed = is_closed_;
    }
    for (Wish& wish : wishes) Grant(wish);
    wishes.clear();
    if (is_closed) break;
    for (const auto& channel : channels_) {
      if (channel->next_look() <= Clock::now()) channel->Attend(0);
    }
  }
  const Error closed(Code::kFailedPrecondition, "client: it was closed before the answer came");
  for (const auto& channel : channels_) channel->Fail(closed);
}

void Client::Grant(Wish& wish) {
  Channel& channel = *channels_[static_cast<size_t>(wish.server)];
  if (wish.begin) channel.Begin(std::move(wish.begin));
  if (wish.give_up) channel.GiveUp(wish.give_up);
  if (wish.address) channel.Move(std::move(*wish.address), std::move(wish.words));
}

}  // namespace monolith::rpc
