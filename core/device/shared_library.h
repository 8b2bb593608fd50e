// Functions of a shared library that is opened by its name at run time: there is nothing to build or link against.
// Thread-safe; libraries are never closed.
#pragma once

#include <string>
#include <vector>

namespace monolith::device {

class SharedLibrary {
 public:
  // Opens the first of these that can be opened. Throws kUnavailable, with the reason for each, if there is none;
  // `purpose` begins the message, `advice` ends it.
  SharedLibrary(const std::string& purpose, const std::vector<std::string>& names, const std::string& advice);

  // Throws kUnavailable if the library does not have the function: it is of another version.
  template <typename Function>
  void Find(const char* name, Function* function) const {
    *function = reinterpret_cast<Function>(Address(name));
  }

  const std::string& name() const { return name_; }

 private:
  void* Address(const char* name) const;

  std::string name_;
  void* handle_ = nullptr;
};

}  // namespace monolith::device
