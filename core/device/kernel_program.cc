#include "device/kernel_program.h"

namespace monolith::device {
namespace {

constexpr const char* kMain = R"(#include "device/kernels/all.h"
namespace monolith::device {
#define MONOLITH_KERNEL_FUNCTION(name, has_barriers, ...)                                                          \
  extern "C" __global__ void __launch_bounds__(kBlock) name(const __grid_constant__ __VA_ARGS__ kernel) { kernel(); }
MONOLITH_DEVICE_KERNELS(MONOLITH_KERNEL_FUNCTION)
}  // namespace monolith::device
)";

}  // namespace

KernelProgram KernelProgramFor(int architecture) {
  KernelProgram program;
  program.main = kMain;
  program.headers.assign(kKernelHeaders.begin(), kKernelHeaders.end());
  program.headers.insert(program.headers.end(), kStandardHeaders.begin(), kStandardHeaders.end());
  // Rounding as on the processor: no fused multiply-add, exact division and roots, subnormal numbers kept.
  program.options = {"--gpu-architecture=sm_" + std::to_string(architecture),
                     "--std=c++17",
                     "--device-as-default-execution-space",
                     "--fmad=false",
                     "--prec-div=true",
                     "--prec-sqrt=true",
                     "--ftz=false"};
  return program;
}

std::string KeyOf(const KernelProgram& program, const std::string& compiler_version) {
  std::string key = "NVRTC " + compiler_version;
  const auto add = [&key](const std::string& part) { key.append(1, '\0').append(part); };
  for (const std::string& option : program.options) add(option);
  add(program.main);
  for (const SourceFile& header : program.headers) {
    add(header.name);
    add(header.text);
  }
  return key;
}

}  // namespace monolith::device
