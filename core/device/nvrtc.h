// NVRTC, NVIDIA's compiler of CUDA C++ as a library, loaded at run time. Thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "device/kernel_program.h"

namespace monolith::device {

// As in nvrtc.h.
#define MONOLITH_NVRTC_FUNCTIONS(FUNCTION)                                                                   \
  FUNCTION(nvrtcVersion, int, (int* major, int* minor))                                                      \
  FUNCTION(nvrtcCreateProgram, int,                                                                          \
           (void** program, const char* text, const char* name, int num_headers, const char* const* headers, \
            const char* const* header_names))                                                                \
  FUNCTION(nvrtcDestroyProgram, int, (void** program))                                                       \
  FUNCTION(nvrtcCompileProgram, int, (void* program, int num_options, const char* const* options))           \
  FUNCTION(nvrtcGetProgramLogSize, int, (void* program, size_t* size))                                       \
  FUNCTION(nvrtcGetProgramLog, int, (void* program, char* log))                                              \
  FUNCTION(nvrtcGetCUBINSize, int, (void* program, size_t* size))                                            \
  FUNCTION(nvrtcGetCUBIN, int, (void* program, char* code))                                                  \
  FUNCTION(nvrtcGetErrorString, const char*, (int error))

class Nvrtc {
 public:
  // Opens the first of these paths, or names, that can be opened. Throws kUnavailable if there is none.
  explicit Nvrtc(const std::vector<std::string>& paths);

  // "13.0"
  const std::string& version() const { return version_; }

  // Returns the machine code for the architecture among the options. Throws kUnavailable if this version does not
  // support these options, the architecture among them; kInternal, with the compiler's log, for any other failure.
  std::string Compile(const KernelProgram& program) const;

 private:
#define MONOLITH_NVRTC_MEMBER(name, result, arguments) result(*name##_) arguments = nullptr;
  MONOLITH_NVRTC_FUNCTIONS(MONOLITH_NVRTC_MEMBER)
#undef MONOLITH_NVRTC_MEMBER

  void Check(int result, const char* call) const;
  std::string LogOf(void* program) const;

  std::string version_;
};

}  // namespace monolith::device
