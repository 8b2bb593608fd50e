// Compiled kernels in a folder, so that a machine compiles them once.
//
// Several processes may share the folder. Whatever is wrong with it (read-only, full, damaged files), kernels are
// compiled again: the cache causes no error, and never returns code of other kernels. Thread-safe.
#pragma once

#include <functional>
#include <string>
#include <utility>

namespace monolith::device {

class KernelCache {
 public:
  // Creates the folder when there is something to keep. An empty name: nothing is kept.
  explicit KernelCache(std::string folder) : folder_(std::move(folder)) {}

  // Returns the code that was compiled for an equal key, or else that of compile(), and keeps it. Passes on the errors
  // of compile().
  std::string CodeFor(const std::string& key, const std::function<std::string()>& compile) const;

  // The file in which the code for a key is kept.
  std::string PathOf(const std::string& key) const;

 private:
  const std::string folder_;
};

}  // namespace monolith::device
