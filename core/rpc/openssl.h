// The functions of the system's OpenSSL that TLS needs, loaded at run time: there is nothing to build or link against,
// and a machine without the library has everything but TLS in the core.
//
// Types of OpenSSL are opaque here. Thread-safe after loading; never unloaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace monolith::rpc {

extern "C" {
using TlsVerifyCallback = int (*)(int, void*);
using TlsPasswordCallback = int (*)(char*, int, int, void*);
using BioWrite = int (*)(void*, const char*, int);
using BioRead = int (*)(void*, char*, int);
using BioControl = long (*)(void*, int, long, void*);
}

// Name, result, arguments; as in the headers of OpenSSL 1.1.1 and 3.
#define MONOLITH_OPENSSL_FUNCTIONS(FUNCTION)                                      \
  FUNCTION(OPENSSL_init_ssl, int, (uint64_t, const void*))                        \
  FUNCTION(OpenSSL_version, const char*, (int))                                   \
  FUNCTION(TLS_method, const void*, ())                                           \
  FUNCTION(SSL_CTX_new, void*, (const void*))                                     \
  FUNCTION(SSL_CTX_free, void, (void*))                                           \
  FUNCTION(SSL_CTX_ctrl, long, (void*, int, long, void*))                         \
  FUNCTION(SSL_CTX_set_options, uint64_t, (void*, uint64_t))                      \
  FUNCTION(SSL_CTX_set_cipher_list, int, (void*, const char*))                    \
  FUNCTION(SSL_CTX_set_ciphersuites, int, (void*, const char*))                   \
  FUNCTION(SSL_CTX_set_num_tickets, int, (void*, size_t))                         \
  FUNCTION(SSL_CTX_set_verify, void, (void*, int, TlsVerifyCallback))             \
  FUNCTION(SSL_CTX_set_default_passwd_cb, void, (void*, TlsPasswordCallback))     \
  FUNCTION(SSL_CTX_set_default_read_buffer_len, void, (void*, size_t))            \
  FUNCTION(SSL_CTX_use_certificate_chain_file, int, (void*, const char*))         \
  FUNCTION(SSL_CTX_use_PrivateKey_file, int, (void*, const char*, int))           \
  FUNCTION(SSL_CTX_check_private_key, int, (const void*))                         \
  FUNCTION(SSL_CTX_load_verify_locations, int, (void*, const char*, const char*)) \
  FUNCTION(SSL_CTX_get0_param, void*, (void*))                                    \
  FUNCTION(SSL_new, void*, (void*))                                               \
  FUNCTION(SSL_free, void, (void*))                                               \
  FUNCTION(SSL_ctrl, long, (void*, int, long, void*))                             \
  FUNCTION(SSL_set_bio, void, (void*, void*, void*))                              \
  FUNCTION(SSL_set_accept_state, void, (void*))                                   \
  FUNCTION(SSL_set_connect_state, void, (void*))                                  \
  FUNCTION(SSL_get0_param, void*, (void*))                                        \
  FUNCTION(SSL_do_handshake, int, (void*))                                        \
  FUNCTION(SSL_read, int, (void*, void*, int))                                    \
  FUNCTION(SSL_write, int, (void*, const void*, int))                             \
  FUNCTION(SSL_shutdown, int, (void*))                                            \
  FUNCTION(SSL_get_error, int, (const void*, int))                                \
  FUNCTION(SSL_has_pending, int, (const void*))                                   \
  FUNCTION(SSL_get_verify_result, long, (const void*))                            \
  FUNCTION(BIO_get_new_index, int, ())                                            \
  FUNCTION(BIO_meth_new, void*, (int, const char*))                               \
  FUNCTION(BIO_meth_set_write, int, (void*, BioWrite))                            \
  FUNCTION(BIO_meth_set_read, int, (void*, BioRead))                              \
  FUNCTION(BIO_meth_set_ctrl, int, (void*, BioControl))                           \
  FUNCTION(BIO_new, void*, (const void*))                                         \
  FUNCTION(BIO_set_data, void, (void*, void*))                                    \
  FUNCTION(BIO_get_data, void*, (void*))                                          \
  FUNCTION(BIO_set_init, void, (void*, int))                                      \
  FUNCTION(BIO_set_flags, void, (void*, int))                                     \
  FUNCTION(BIO_clear_flags, void, (void*, int))                                   \
  FUNCTION(ERR_clear_error, void, ())                                             \
  FUNCTION(ERR_get_error, unsigned long, ())                                      \
  FUNCTION(ERR_reason_error_string, const char*, (unsigned long))                 \
  FUNCTION(X509_verify_cert_error_string, const char*, (long))                    \
  FUNCTION(X509_VERIFY_PARAM_set1_host, int, (void*, const char*, size_t))        \
  FUNCTION(X509_VERIFY_PARAM_set1_ip_asc, int, (void*, const char*))              \
  FUNCTION(X509_VERIFY_PARAM_set_hostflags, void, (void*, unsigned))              \
  FUNCTION(X509_VERIFY_PARAM_set_flags, int, (void*, unsigned long))

struct OpenSsl {
#define MONOLITH_OPENSSL_MEMBER(name, result, arguments) result(*name) arguments = nullptr;
  MONOLITH_OPENSSL_FUNCTIONS(MONOLITH_OPENSSL_MEMBER)
#undef MONOLITH_OPENSSL_MEMBER
};

// Loads the library on the first call. Throws kUnavailable, with what is missing, where there is none.
const OpenSsl& LoadOpenSsl();

}  // namespace monolith::rpc
