// TCP sockets that never block: each call does what can be done now and says how far it came.
//
// A Socket owns its descriptor and belongs to one thread at a time. Failures of making one are Error(kUnreachable) with
// the address and the system's reason; failures of an established connection are told as Transfer::kBroken, since they
// are part of its life.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace monolith::rpc {

struct Address {
  std::string host;  // a name or a number, IPv4 or IPv6 without brackets
  uint16_t port = 0;
  std::string Text() const;
  bool operator==(const Address&) const = default;
};

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(other.Release()) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { Close(); }

  int descriptor() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }
  void Close();
  int Release();

 private:
  int descriptor_ = -1;
};

// What became of an attempt to move bytes.
struct Transfer {
  enum Kind { kMoved, kMustWait, kBroken };
  Kind kind;
  size_t bytes = 0;  // of kMoved, at least 1
};

// Bound and listening. Throws kUnreachable, for a port in use by name.
Socket Listen(const Address& address);
uint16_t PortOf(const Socket& socket);
// The next connection that waits, and where it comes from; none if nobody does.
struct Accepted {
  Socket socket;
  std::string peer;
};
// `is_exhausted`, if given, is told whether there is one and the system has no room for it at the moment.
std::optional<Accepted> Accept(const Socket& listener, bool* is_exhausted = nullptr);

// Under way; writable once it is settled, and then ConnectError() says how it ended. Looks the name up, which may wait.
// A name with several addresses is tried at another one with each attempt.
Socket BeginConnect(const Address& address, int attempt);
// Empty: connected.
std::string ConnectError(const Socket& socket);

// Says that nothing more will be sent; the other side can still be heard.
void EndSending(const Socket& socket);

// From now on it counts as readable when so many bytes are there, or its end; what there is can be taken before.
void SetReceiveLowWater(const Socket& socket, size_t bytes);

// How many bytes are there and were not taken.
uint64_t NumWaiting(const Socket& socket);

// 0 bytes of an orderly end of the other side count as kBroken.
Transfer Receive(const Socket& socket, std::span<uint8_t> into);
Transfer Send(const Socket& socket, std::span<const iovec> parts);

}  // namespace monolith::rpc
