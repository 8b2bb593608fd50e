#include "rpc/tls.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace monolith::rpc {
namespace {

// Constants of OpenSSL's headers, the same in 1.1.1 and 3.
constexpr int kSslErrorWantRead = 2, kSslErrorWantWrite = 3;
constexpr int kVerifyNone = 0, kVerifyPeer = 1, kVerifyRequired = 2, kPemFile = 1;
constexpr int kCtrlMode = 33, kCtrlReadAhead = 41, kCtrlSessionCache = 44, kCtrlHostName = 55, kCtrlMinVersion = 123;
constexpr long kTls12 = 0x0303, kVerified = 0;
constexpr long kModePartialWrite = 1, kModeMovingBuffer = 2, kModeReleaseBuffers = 16;
constexpr uint64_t kNoTicket = 1u << 14, kNoCompression = 1u << 17, kNoRenegotiation = 1u << 30;
constexpr unsigned kNoPartialWildcards = 4;
constexpr unsigned long kPartialChain = 0x80000, kTrustedFirst = 0x8000;
constexpr int kSourceOrSink = 0x0400, kRetryRead = 0x09, kRetryWrite = 0x0A, kAllRetries = 0x0F, kFlush = 11;

// Ciphers with authenticated encryption and keys that are not kept; the cheapest first.
constexpr const char* kCiphers13 = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
constexpr const char* kCiphers12 = "ECDHE+AESGCM:ECDHE+CHACHA20";

// The reason of OpenSSL 3 for a connection that ended without a goodbye, which frames do not need.
constexpr std::string_view kEndOfStream = "unexpected eof while reading";

constexpr size_t kRecordBytes = 16384;
constexpr size_t kReadAheadBytes = 4 * kRecordBytes;
static_assert(kReadAheadBytes + 2 * kRecordBytes <= TlsSession::kMostHeld);
constexpr size_t kMaxSend = size_t{1} << 20;  // at a time

// The socket as OpenSSL sees it: its own would raise SIGPIPE.
int DescriptorOf(const OpenSsl& openssl, void* bio) {
  return static_cast<int>(reinterpret_cast<intptr_t>(openssl.BIO_get_data(bio)));
}

template <typename Move>
int MoveBytes(void* bio, int retry, const Move& move) {
  const OpenSsl& openssl = LoadOpenSsl();
  openssl.BIO_clear_flags(bio, kAllRetries);
  ssize_t moved;
  do {
    moved = move(DescriptorOf(openssl, bio));
  } while (moved < 0 && errno == EINTR);
  if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) openssl.BIO_set_flags(bio, retry);
  return static_cast<int>(moved);
}

extern "C" int WriteToSocket(void* bio, const char* bytes, int count) {
  return MoveBytes(bio, kRetryWrite,
                   [&](int descriptor) { return send(descriptor, bytes, static_cast<size_t>(count), MSG_NOSIGNAL); });
}

extern "C" int ReadFromSocket(void* bio, char* bytes, int count) {
  return MoveBytes(bio, kRetryRead,
                   [&](int descriptor) { return recv(descriptor, bytes, static_cast<size_t>(count), 0); });
}

extern "C" long ControlSocket(void*, int command, long, void*) { return command == kFlush ? 1 : 0; }

// OpenSSL would ask for a passphrase on the terminal.
extern "C" int NoPassphrase(char*, int, int, void*) { return 0; }

const void* SocketMethod(const OpenSsl& openssl) {
  static void* const method = [&] {
    void* made = openssl.BIO_meth_new(openssl.BIO_get_new_index() | kSourceOrSink, "monolith socket");
    openssl.BIO_meth_set_write(made, &WriteToSocket);
    openssl.BIO_meth_set_read(made, &ReadFromSocket);
    openssl.BIO_meth_set_ctrl(made, &ControlSocket);
    return made;
  }();
  return method;
}

// The first error of this thread's queue, which is empty afterwards; empty: there is none.
std::string TakeReason(const OpenSsl& openssl) {
  const unsigned long error = openssl.ERR_get_error();
  openssl.ERR_clear_error();
  if (error == 0) return "";
  const char* reason = openssl.ERR_reason_error_string(error);
  return reason != nullptr ? reason : "error " + std::to_string(error);
}

}  // namespace

TlsContext::TlsContext(TlsFiles files, bool is_server)
    : openssl_(LoadOpenSsl()),
      files_(std::move(files)),
      is_server_(is_server),
      handle_(openssl_.SSL_CTX_new(openssl_.TLS_method())) {
  if (handle_ == nullptr) throw Error(Code::kUnavailable, "TLS: OpenSSL does not start: " + TakeReason(openssl_));
  openssl_.SSL_CTX_ctrl(handle_, kCtrlMinVersion, kTls12, nullptr);
  openssl_.SSL_CTX_set_options(handle_, kNoTicket | kNoCompression | kNoRenegotiation);
  openssl_.SSL_CTX_set_num_tickets(handle_, 0);
  openssl_.SSL_CTX_ctrl(handle_, kCtrlSessionCache, 0, nullptr);
  openssl_.SSL_CTX_ctrl(handle_, kCtrlMode, kModePartialWrite | kModeMovingBuffer | kModeReleaseBuffers, nullptr);
  openssl_.SSL_CTX_ctrl(handle_, kCtrlReadAhead, 1, nullptr);
  openssl_.SSL_CTX_set_default_read_buffer_len(handle_, kReadAheadBytes);
  openssl_.SSL_CTX_set_default_passwd_cb(handle_, &NoPassphrase);
  try {
    UseFiles();
  } catch (const Error&) {
    openssl_.SSL_CTX_free(handle_);
    throw;
  }
}

void TlsContext::UseFiles() {
  const auto require = [&](bool is_done, const std::string& subject, const char* expected) {
    if (is_done) return;
    throw Error(Code::kInvalidArgument,
                "TLS: " + subject + ": OpenSSL expects " + expected + ", got: " + TakeReason(openssl_));
  };
  openssl_.ERR_clear_error();
  require(openssl_.SSL_CTX_set_ciphersuites(handle_, kCiphers13) == 1 &&
              openssl_.SSL_CTX_set_cipher_list(handle_, kCiphers12) == 1,
          "ciphers", "those of TLS 1.2 and 1.3");
  if (!files_.certificate.empty()) {
    require(openssl_.SSL_CTX_use_certificate_chain_file(handle_, files_.certificate.c_str()) == 1, files_.certificate,
            "a certificate chain in PEM");
    require(openssl_.SSL_CTX_use_PrivateKey_file(handle_, files_.key.c_str(), kPemFile) == 1 &&
                openssl_.SSL_CTX_check_private_key(handle_) == 1,
            files_.key, "the private key of the certificate in PEM, without a passphrase");
  }
  if (!files_.authorities.empty()) {
    require(openssl_.SSL_CTX_load_verify_locations(handle_, files_.authorities.c_str(), nullptr) == 1,
            files_.authorities, "certificates of authorities in PEM");
  }
  const bool verifies = !is_server_ || !files_.authorities.empty();
  openssl_.SSL_CTX_set_verify(handle_, verifies ? kVerifyPeer | kVerifyRequired : kVerifyNone, nullptr);
  // As gRPC: an authority need not be a root.
  openssl_.X509_VERIFY_PARAM_set_flags(openssl_.SSL_CTX_get0_param(handle_), kPartialChain | kTrustedFirst);
}

TlsContext::~TlsContext() { openssl_.SSL_CTX_free(handle_); }

TlsSession::TlsSession(std::shared_ptr<const TlsContext> context, const Socket& socket, const std::string& host)
    : openssl_(LoadOpenSsl()),
      context_(std::move(context)),
      host_(host),
      handle_(openssl_.SSL_new(context_->handle())) {
  void* bio = handle_ == nullptr ? nullptr : openssl_.BIO_new(SocketMethod(openssl_));
  if (bio == nullptr) {
    if (handle_ != nullptr) openssl_.SSL_free(handle_);
    throw Error(Code::kResourceExhausted, "TLS: no memory for a connection");
  }
  openssl_.BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(socket.descriptor())));
  openssl_.BIO_set_init(bio, 1);
  openssl_.SSL_set_bio(handle_, bio, bio);  // which owns it
  if (context_->is_server()) {
    openssl_.SSL_set_accept_state(handle_);
  } else {
    openssl_.SSL_set_connect_state(handle_);
    ExpectHost(host);
  }
}

TlsSession::~TlsSession() { openssl_.SSL_free(handle_); }

void TlsSession::ExpectHost(const std::string& host) {
  void* rules = openssl_.SSL_get0_param(handle_);
  openssl_.X509_VERIFY_PARAM_set_hostflags(rules, kNoPartialWildcards);
  if (openssl_.X509_VERIFY_PARAM_set1_ip_asc(rules, host.c_str()) == 1) return;
  openssl_.ERR_clear_error();  // it is a name
  MONOLITH_CHECK(openssl_.X509_VERIFY_PARAM_set1_host(rules, host.c_str(), host.size()) == 1);
  openssl_.SSL_ctrl(handle_, kCtrlHostName, 0, const_cast<char*>(host.c_str()));
}

Transfer TlsSession::Shake() {
  openssl_.ERR_clear_error();
  const int result = openssl_.SSL_do_handshake(handle_);
  if (result == 1) {
    is_shaking_ = receives_after_room_ = false;
    may_have_received_ = true;
    return {Transfer::kMoved};
  }
  const Transfer transfer = TransferOf(result, &receives_after_room_);
  if (transfer.kind == Transfer::kBroken) trouble_ = HandshakeTrouble(trouble_);
  return transfer;
}

std::string TlsSession::HandshakeTrouble(const std::string& reason) const {
  const long verified = openssl_.SSL_get_verify_result(handle_);
  if (verified != kVerified) {
    const std::string why = openssl_.X509_verify_cert_error_string(verified);
    return "TLS: the certificate of the other side was rejected: " + why + "; expected one" +
           (context_->is_server() ? "" : " for " + host_) + " from the authorities in " +
           context_->files().authorities + "; compare the certificates of both sides";
  }
  return "TLS: no handshake: " + (reason.empty() ? "the other side closed the connection" : reason) +
         "; does the other side speak TLS, and does it accept the certificate of this one?";
}

Transfer TlsSession::TransferOf(int result, bool* waits_for_room) {
  const int error = openssl_.SSL_get_error(handle_, result);
  *waits_for_room = error == kSslErrorWantWrite;
  if (error == kSslErrorWantRead || error == kSslErrorWantWrite) return {Transfer::kMustWait};
  is_broken_ = true;
  trouble_ = TakeReason(openssl_);
  if (trouble_ == kEndOfStream) trouble_.clear();
  return {Transfer::kBroken};
}

Transfer TlsSession::Receive(std::span<uint8_t> into) {
  openssl_.ERR_clear_error();
  const int moved = openssl_.SSL_read(handle_, into.data(), static_cast<int>(std::min<size_t>(into.size(), INT_MAX)));
  may_have_received_ = moved > 0;
  if (moved > 0) {
    receives_after_room_ = false;
    return {Transfer::kMoved, static_cast<size_t>(moved)};
  }
  const Transfer transfer = TransferOf(moved, &receives_after_room_);
  if (!trouble_.empty()) trouble_ = "TLS: " + trouble_ + "; does the other side accept the certificate of this one?";
  return transfer;
}

bool TlsSession::has_received() const { return may_have_received_ && openssl_.SSL_has_pending(handle_) == 1; }

Transfer TlsSession::Send(std::span<const iovec> parts) {
  if (parts.front().iov_len >= kRecordBytes) return SendBytes(parts.front().iov_base, parts.front().iov_len);
  // Small parts share a record. A retry gathers at least the same bytes, as OpenSSL requires: parts are only added.
  uint8_t record[kRecordBytes];
  size_t filled = 0;
  for (const iovec& part : parts) {
    const size_t count = std::min(part.iov_len, kRecordBytes - filled);
    std::memcpy(record + filled, part.iov_base, count);
    filled += count;
    if (filled == kRecordBytes) break;
  }
  return SendBytes(record, filled);
}

Transfer TlsSession::SendBytes(const void* bytes, size_t count) {
  size_t sent = 0;
  while (sent < std::min(count, kMaxSend)) {
    openssl_.ERR_clear_error();
    const auto left = static_cast<int>(std::min<size_t>(count - sent, INT_MAX));
    const int moved = openssl_.SSL_write(handle_, static_cast<const uint8_t*>(bytes) + sent, left);
    if (moved <= 0) {
      bool waits_for_room;
      const Transfer transfer = TransferOf(moved, &waits_for_room);
      if (transfer.kind == Transfer::kBroken || sent == 0) return transfer;
      break;
    }
    sent += static_cast<size_t>(moved);
  }
  return {Transfer::kMoved, sent};
}

void TlsSession::SayGoodbye() {
  if (is_shaking_ || is_broken_) return;
  openssl_.ERR_clear_error();
  openssl_.SSL_shutdown(handle_);
  openssl_.ERR_clear_error();
}

}  // namespace monolith::rpc
