#include "rpc/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "base/error.h"

namespace monolith::rpc {
namespace {

// A peer that disappeared, with its machine or the network, is detected after about a minute.
constexpr int kIdleSeconds = 30, kProbeSeconds = 10, kProbes = 3, kUnansweredMilliseconds = 60'000;
constexpr int kBacklog = 1024;

std::string Reason(int error) { return std::strerror(error); }

[[noreturn]] void Fail(const Address& address, const std::string& what, const std::string& reason) {
  throw Error(Code::kUnreachable, address.Text() + ": " + what + ": " + reason);
}

using Found = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Found LookUp(const Address& address, bool to_listen) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &wanted, &found);
  if (error != 0) Fail(address, "the host is not known", gai_strerror(error));
  return {found, &freeaddrinfo};
}

Socket Make(const Address& address, const addrinfo& found) {
  Socket made(socket(found.ai_family, found.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, found.ai_protocol));
  if (!made.is_open()) Fail(address, "no socket", Reason(errno));
  return made;
}

void Set(const Socket& socket, int level, int option, int value) {
  setsockopt(socket.descriptor(), level, option, &value, sizeof(value));  // a missing option is no failure
}

void Tune(const Socket& socket) {
  Set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(socket, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  Set(socket, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  Set(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  Set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kUnansweredMilliseconds);
}

bool IsWait(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

Transfer TransferOf(ssize_t moved) {
  if (moved > 0) return {Transfer::kMoved, static_cast<size_t>(moved)};
  if (moved < 0 && IsWait(errno)) return {Transfer::kMustWait};
  return {Transfer::kBroken};
}

std::string TextOf(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  const int flags = NI_NUMERICHOST | NI_NUMERICSERV;
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof(host), port, sizeof(port), flags)) {
    return "an unknown address";
  }
  return Address{host, static_cast<uint16_t>(std::stoi(port))}.Text();
}

}  // namespace

std::string Address::Text() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    Close();
    descriptor_ = other.Release();
  }
  return *this;
}

void Socket::Close() {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
}

int Socket::Release() { return std::exchange(descriptor_, -1); }

Socket Listen(const Address& address) {
  const Found found = LookUp(address, true);
  Socket made = Make(address, *found);
  Set(made, SOL_SOCKET, SO_REUSEADDR, 1);  // connections of a previous server do not block its port
  if (bind(made.descriptor(), found->ai_addr, found->ai_addrlen) != 0) {
    Fail(address, "cannot be bound", Reason(errno));
  }
  if (listen(made.descriptor(), kBacklog) != 0) Fail(address, "cannot be listened on", Reason(errno));
  return made;
}

uint16_t PortOf(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::optional<Accepted> Accept(const Socket& listener, bool* is_exhausted) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  const int descriptor =
      accept4(listener.descriptor(), reinterpret_cast<sockaddr*>(&address), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (is_exhausted != nullptr) {
    *is_exhausted = descriptor < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM);
  }
  if (descriptor < 0) return std::nullopt;  // none is waiting, the peer has closed it, or no descriptor is left
  Socket socket(descriptor);
  Tune(socket);
  return Accepted{std::move(socket), TextOf(address, size)};
}

Socket BeginConnect(const Address& address, int attempt) {
  const Found found = LookUp(address, false);
  int count = 0;
  for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) ++count;
  const addrinfo* chosen = found.get();
  for (int skipped = attempt % count; skipped > 0; --skipped) chosen = chosen->ai_next;
  Socket made = Make(address, *chosen);
  Tune(made);
  if (connect(made.descriptor(), chosen->ai_addr, chosen->ai_addrlen) != 0 && errno != EINPROGRESS) {
    Fail(address, "cannot be reached", Reason(errno));
  }
  return made;
}

std::string ConnectError(const Socket& socket) {
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  return error == 0 ? "" : Reason(error);
}

void SetNonBlocking(const Socket& socket) {
  const int flags = fcntl(socket.descriptor(), F_GETFL);
  if (flags >= 0) fcntl(socket.descriptor(), F_SETFL, flags | O_NONBLOCK);
}

void EndSending(const Socket& socket) { shutdown(socket.descriptor(), SHUT_WR); }

void SetReceiveLowWater(const Socket& socket, size_t bytes) {
  const int wanted = static_cast<int>(bytes);  // a system without this option wakes up earlier
  setsockopt(socket.descriptor(), SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof(wanted));
}

uint64_t NumWaiting(const Socket& socket) {
  int bytes = 0;
  return ioctl(socket.descriptor(), FIONREAD, &bytes) == 0 ? static_cast<uint64_t>(bytes) : 0;
}

Transfer Receive(const Socket& socket, std::span<uint8_t> into) {
  ssize_t moved;
  do {
    moved = recv(socket.descriptor(), into.data(), into.size(), 0);
  } while (moved < 0 && errno == EINTR);
  return TransferOf(moved);
}

Transfer Send(const Socket& socket, std::span<const iovec> parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  ssize_t moved;
  do {
    moved = sendmsg(socket.descriptor(), &message, MSG_NOSIGNAL);
  } while (moved < 0 && errno == EINTR);
  return TransferOf(moved);
}

}  // namespace monolith::rpc
