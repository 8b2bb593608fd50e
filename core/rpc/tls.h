// TLS for streams, by the system's OpenSSL: certificates and rules of one side (TlsContext), and one connection.
//
// TLS 1.2 or 1.3. A client checks that the server's certificate comes from its authorities and is for the host that it
// connects to. A server that has authorities requires a certificate of them from each client. There is no resumption
// and no renegotiation.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "rpc/openssl.h"
#include "rpc/socket.h"

namespace monolith::rpc {

// Names of PEM files; empty: none.
struct TlsFiles {
  std::string certificate;  // chain of this side
  std::string key;          // of the certificate, without a passphrase
  std::string authorities;  // that the other side's certificate must come from
};

// Immutable and thread-safe, shared by connections.
class TlsContext {
 public:
  // Throws kUnavailable if this machine has no OpenSSL, kInvalidArgument for files that OpenSSL rejects.
  TlsContext(TlsFiles files, bool is_server);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  bool is_server() const { return is_server_; }
  const TlsFiles& files() const { return files_; }
  void* handle() const { return handle_; }

 private:
  void UseFiles();

  const OpenSsl& openssl_;
  const TlsFiles files_;
  const bool is_server_;
  void* handle_;
};

// TLS of one connection. Used by one thread at a time; the socket outlives it. Freeing it sends nothing: in a forked
// child that would break the parent's connection.
class TlsSession {
 public:
  // Bytes of the other side that may have been taken from the socket and not received.
  static constexpr size_t kMostHeld = 96 * 1024;

  // `host`: the name or number that a server's certificate must have; unused by servers.
  TlsSession(std::shared_ptr<const TlsContext> context, const Socket& socket, const std::string& host);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Continues the handshake; kMoved: it is complete. It moves no bytes of the caller.
  Transfer Shake();
  bool is_shaking() const { return is_shaking_; }
  // As of sockets. Data can be moved after the handshake. After kMustWait the same bytes are sent again, or more.
  Transfer Receive(std::span<uint8_t> into);
  Transfer Send(std::span<const iovec> parts);
  // Sends that nothing more will be sent, if there is room for it.
  void SayGoodbye();

  // Whether the next bytes have already been taken from the socket, which then does not become readable for them.
  bool has_received() const;
  // Whether the handshake or Receive() waits for room in the socket, rather than for bytes from it.
  bool receives_after_room() const { return receives_after_room_; }
  // Why the session broke; empty: it did not, or the other side closed the connection.
  const std::string& trouble() const { return trouble_; }

 private:
  Transfer TransferOf(int result, bool* waits_for_room);
  Transfer SendBytes(const void* bytes, size_t count);
  void ExpectHost(const std::string& host);
  std::string HandshakeTrouble(const std::string& reason) const;

  const OpenSsl& openssl_;
  const std::shared_ptr<const TlsContext> context_;
  const std::string host_;
  void* handle_;
  bool is_shaking_ = true;
  bool receives_after_room_ = false;
  bool may_have_received_ = false;
  bool is_broken_ = false;
  std::string trouble_;
};

}  // namespace monolith::rpc
