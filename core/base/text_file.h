// Small files of the system, such as those of /proc, as text.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

namespace monolith {

// All of a file; empty where it cannot be read.
//
// By stdio: the library carries its own libstdc++, whose streams meet the locales of the one that torch has brought
// into the process, and crash.
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
