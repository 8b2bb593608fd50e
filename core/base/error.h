// How the core reports what went wrong. Thread-safe: values only.
//
// Two kinds of failure, kept apart: a caller's mistake or a bad file throws Error with a Code that the bindings turn
// into the Python exception of that name; a broken invariant of our own aborts through MONOLITH_CHECK with its
// expression and line.
#pragma once

#include <stdexcept>
#include <string>

namespace monolith {

enum class Code {
  kInvalidArgument,     // a wrong call: ValueError
  kFailedPrecondition,  // a right call at the wrong time
  kDataLoss,            // bytes that are not what was written
  kResourceExhausted,   // no memory, no row numbers left
  kNotFound,
  kUnavailable,       // the operating system refused; trying again may help
  kUnreachable,       // another process, at the moment; trying again may help
  kDeadlineExceeded,  // an answer that did not come in time
  kPermissionDenied,
  kInternal,     // a fault of the program that answers
  kStorageFull,  // no space left for a file
};
inline constexpr Code kLastCode = Code::kStorageFull;  // codes travel between processes: add, never renumber

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
