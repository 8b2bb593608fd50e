// A connection that moves bytes: a socket, with TLS or without. Belongs to one thread at a time, but for NumWaiting().
#pragma once

#include <sys/epoll.h>

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "rpc/socket.h"
#include "rpc/tls.h"

namespace monolith::rpc {

class Stream {
 public:
  Stream() = default;
  // A stream without TLS, unless there is a context; its handshake comes first then. `host` is the one that a server's
  // certificate must be for.
  explicit Stream(Socket socket, std::shared_ptr<const TlsContext> tls = nullptr, const std::string& host = {})
      : socket_(std::move(socket)) {
    if (tls != nullptr) tls_ = std::make_unique<TlsSession>(std::move(tls), socket_, host);
  }

  const Socket& socket() const { return socket_; }
  bool is_shaking() const { return tls_ != nullptr && tls_->is_shaking(); }
  // Continues the handshake; kMoved: it is complete.
  Transfer Shake() { return tls_->Shake(); }
  // As of sockets. After kMustWait, Send() is called with the same bytes again, or more.
  Transfer Receive(std::span<uint8_t> into) {
    return tls_ == nullptr ? rpc::Receive(socket_, into) : tls_->Receive(into);
  }
  Transfer Send(std::span<const iovec> parts) {
    return tls_ == nullptr ? rpc::Send(socket_, parts) : tls_->Send(parts);
  }
  void EndSending() {
    SayGoodbye();
    rpc::EndSending(socket_);
  }
  void SayGoodbye() {
    if (tls_ != nullptr) tls_->SayGoodbye();
  }
  // Closes the connection without a goodbye.
  void Close() {
    tls_ = nullptr;
    socket_.Close();
  }

  // From now on the stream counts as readable when about this number of bytes has arrived, or its end.
  void SetReceiveLowWater(size_t bytes) const {
    // A part of the bytes may be in TLS already, which the socket does not count.
    const size_t held = tls_ == nullptr ? 0 : TlsSession::kMostHeld;
    rpc::SetReceiveLowWater(socket_, bytes > held ? bytes - held : 1);
  }
  uint64_t NumWaiting() const { return rpc::NumWaiting(socket_); }
  // The events of the socket after which more may be received, or the handshake continues.
  uint32_t EventsToReceive() const {
    if (tls_ == nullptr) return EPOLLIN;
    if (tls_->receives_after_room()) return EPOLLOUT;
    return tls_->has_received() ? EPOLLIN | EPOLLOUT : EPOLLIN;  // the latter comes immediately
  }
  // Why the stream broke; empty: the other side closed it, or the system did.
  std::string Trouble() const { return tls_ == nullptr ? "" : tls_->trouble(); }

 private:
  Socket socket_;
  std::unique_ptr<TlsSession> tls_;  // destroyed before the socket
};

}  // namespace monolith::rpc
