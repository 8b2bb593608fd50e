// Error reporting of the core. Thread-safe: values only.
//
// Two kinds of failure are kept apart: a caller's mistake or a bad file throws Error with a Code that the bindings
// convert to the Python exception of that name; a broken internal invariant aborts through MONOLITH_CHECK with its
// expression and line.
#pragma once

#include <stdexcept>
#include <string>

namespace monolith {

enum class Code {
  kInvalidArgument,     // an invalid call: ValueError
  kFailedPrecondition,  // a valid call at the wrong time
  kDataLoss,            // bytes that differ from those written
  kResourceExhausted,   // no memory, no row numbers left
  kNotFound,
  kUnavailable,       // the operating system returned an error; a retry may help
  kUnreachable,       // another process cannot be reached at present; a retry may help
  kDeadlineExceeded,  // an answer that did not arrive in time
  kPermissionDenied,
  kInternal,     // a bug in the program that answers
  kStorageFull,  // no space left for a file
};
inline constexpr Code kLastCode = Code::kStorageFull;  // codes are sent between processes: add, never renumber

class Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Code code() const { return code_; }

 private:
  Code code_;
};

[[noreturn]] void AbortOnBrokenInvariant(const char* expression, const char* file, int line);

}  // namespace monolith

#define MONOLITH_CHECK(expression)                                         \
  do {                                                                     \
    if (!(expression)) [[unlikely]]                                        \
      ::monolith::AbortOnBrokenInvariant(#expression, __FILE__, __LINE__); \
  } while (false)
