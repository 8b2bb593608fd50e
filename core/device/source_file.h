// A header of the text that NVRTC compiles, as the library carries it.
#pragma once

#include <span>

namespace monolith::device {

struct SourceFile {
  const char* name;  // as #include directives have it
  const char* text;
};

// device/kernels/all.h and every header of the core that it includes. CMake writes their definition
// (cmake/embed_kernels.cmake).
extern const std::span<const SourceFile> kKernelHeaders;

// What these use of the standard library, which NVRTC does not have.
extern const std::span<const SourceFile> kStandardHeaders;

}  // namespace monolith::device
