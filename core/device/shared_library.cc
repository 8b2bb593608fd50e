#include "device/shared_library.h"

#include <dlfcn.h>

#include "base/error.h"

namespace monolith::device {

SharedLibrary::SharedLibrary(const std::string& purpose, const std::vector<std::string>& names,
                             const std::string& advice) {
  std::string reasons;
  for (const std::string& name : names) {
    handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      name_ = name;
      return;
    }
    if (const char* reason = dlerror()) reasons.append(reasons.empty() ? "" : "; ").append(reason);
  }
  throw Error(Code::kUnavailable,
              purpose + " cannot be opened (" + (reasons.empty() ? "no file was given" : reasons) + "); " + advice);
}

void* SharedLibrary::Address(const char* name) const {
  void* address = dlsym(handle_, name);
  if (address == nullptr) {
    throw Error(Code::kUnavailable, name_ + " has no function " + name + ": it is too old; install a newer version");
  }
  return address;
}

}  // namespace monolith::device
