// Reads small files of the system, such as those of /proc, as text.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

namespace monolith {

// Returns the content of a file; empty if it cannot be read.
//
// By stdio: the library includes its own libstdc++, whose streams would use the locales of torch's libstdc++ in the
// same process, and crash.
inline std::string ReadTextFile(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  std::string text;
  char piece[4096];
  while (file != nullptr) {
    const size_t size = std::fread(piece, 1, sizeof(piece), file.get());
    if (size == 0) break;
    text.append(piece, size);
  }
  return text;
}

}  // namespace monolith
