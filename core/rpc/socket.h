// Non-blocking TCP sockets: each call does what is possible now and returns how far it got.
//
// A Socket owns its descriptor and belongs to one thread at a time. Failures of creating one are Error(kUnreachable)
// with the address and the system's reason; failures of an established connection are expected, and reported as
// Transfer::kBroken.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace monolith::rpc {

class TlsContext;

struct Address {
  std::string host;  // a name or a number, IPv4 or IPv6 without brackets
  uint16_t port = 0;
  std::shared_ptr<const TlsContext> tls = nullptr;  // of a client; null: the server does not speak TLS
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

// Outcome of an attempt to send or receive.
struct Transfer {
  enum Kind { kMoved, kMustWait, kBroken };
  Kind kind;
  size_t bytes = 0;  // of kMoved, at least 1
};

// Returns a bound and listening socket. Throws kUnreachable; the message names a port in use.
Socket Listen(const Address& address);
uint16_t PortOf(const Socket& socket);
// The next waiting connection, and the address of its peer.
struct Accepted {
  Socket socket;
  std::string peer;
};
// Returns nothing if no connection is waiting. Sets `is_exhausted`, if given, to whether one is waiting for which the
// system has no descriptor at present.
std::optional<Accepted> Accept(const Socket& listener, bool* is_exhausted = nullptr);

// Starts to connect. The socket becomes writable once the outcome is known, and then ConnectError() returns it.
// Resolves the name, which may block. For a name with several addresses, each attempt uses the next one.
Socket BeginConnect(const Address& address, int attempt);
// Returns an empty text if the socket is connected.
std::string ConnectError(const Socket& socket);

void SetNonBlocking(const Socket& socket);

// Closes the sending direction; receiving still works.
void EndSending(const Socket& socket);

// From now on the socket counts as readable when this number of bytes has arrived, or its end; fewer can still be
// received.
void SetReceiveLowWater(const Socket& socket, size_t bytes);

// Number of bytes that have arrived and were not received.
uint64_t NumWaiting(const Socket& socket);

// An orderly shutdown by the peer counts as kBroken.
Transfer Receive(const Socket& socket, std::span<uint8_t> into);
Transfer Send(const Socket& socket, std::span<const iovec> parts);

}  // namespace monolith::rpc
