// Maps the core's error codes to the Python exceptions of monolith.errors.
#include <exception>

#include "base/error.h"
#include "bindings.h"

namespace nb = nanobind;

namespace monolith {

const char* ErrorClassName(Code code) {
  switch (code) {
    case Code::kInvalidArgument: return "InvalidArgumentError";
    case Code::kFailedPrecondition: return "FailedPreconditionError";
    case Code::kDataLoss: return "DataLossError";
    case Code::kResourceExhausted: return "ResourceExhaustedError";
    case Code::kNotFound: return "NotFoundError";
    case Code::kUnavailable: return "FileUnavailableError";
    case Code::kUnreachable: return "UnavailableError";
    case Code::kDeadlineExceeded: return "DeadlineExceededError";
    case Code::kPermissionDenied: return "PermissionDeniedError";
    case Code::kInternal: return "InternalError";
    case Code::kStorageFull: return "StorageFullError";
  }
  return "UnknownError";
}

namespace {

// The classes are looked up when an error happens: the module may be imported before monolith.errors.
void Translate(const std::exception_ptr& pointer, void* /*payload*/) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    const nb::object type = nb::module_::import_("monolith.errors").attr(ErrorClassName(error.code()));
    PyErr_SetString(type.ptr(), error.what());
  }
}

}  // namespace

void BindErrors(nb::module_& /*m*/) { nb::register_exception_translator(Translate); }

}  // namespace monolith
