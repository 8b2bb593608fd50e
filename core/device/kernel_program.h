// The program that NVRTC compiles: every kernel of device/kernels/all.h as a function under its name.
//
// Constant; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "device/source_file.h"

namespace monolith::device {

struct KernelProgram {
  std::string main;                 // includes the headers
  std::vector<SourceFile> headers;  // by the names that it includes, and that they include
  std::vector<std::string> options;
};

// `architecture` is ten times the compute capability: 90 for 9.0.
KernelProgram KernelProgramFor(int architecture);

// What the machine code depends on, in one string: the program, and the version of the compiler.
std::string KeyOf(const KernelProgram& program, const std::string& compiler_version);

}  // namespace monolith::device
