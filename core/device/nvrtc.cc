#include "device/nvrtc.h"

#include <memory>

#include "base/error.h"
#include "device/shared_library.h"

namespace monolith::device {
namespace {

constexpr int kInvalidOption = 5;

}  // namespace

Nvrtc::Nvrtc(const std::vector<std::string>& paths) {
  const SharedLibrary opened("NVRTC, the compiler of the GPU's kernels,", paths,
                             "install a torch built for CUDA, whose packages contain it, or the CUDA toolkit");
#define MONOLITH_NVRTC_FIND(name, result, arguments) opened.Find(#name, &name##_);
  MONOLITH_NVRTC_FUNCTIONS(MONOLITH_NVRTC_FIND)
#undef MONOLITH_NVRTC_FIND
  int major = 0, minor = 0;
  Check(nvrtcVersion_(&major, &minor), "nvrtcVersion");
  version_ = std::to_string(major) + "." + std::to_string(minor);
}

void Nvrtc::Check(int result, const char* call) const {
  if (result != 0) throw Error(Code::kInternal, std::string(call) + ": " + nvrtcGetErrorString_(result));
}

std::string Nvrtc::LogOf(void* program) const {
  size_t size = 0;
  if (nvrtcGetProgramLogSize_(program, &size) != 0 || size == 0) return {};
  std::string log(size, '\0');
  if (nvrtcGetProgramLog_(program, log.data()) != 0) return {};
  log.resize(size - 1);  // the last byte ends a C string
  return log;
}

std::string Nvrtc::Compile(const KernelProgram& program) const {
  std::vector<const char*> texts, names, options;
  for (const SourceFile& header : program.headers) {
    texts.push_back(header.text);
    names.push_back(header.name);
  }
  for (const std::string& option : program.options) options.push_back(option.c_str());
  void* made = nullptr;
  Check(nvrtcCreateProgram_(&made, program.main.c_str(), "kernels.cu", static_cast<int>(texts.size()), texts.data(),
                            names.data()),
        "nvrtcCreateProgram");
  const auto destroy = [this](void* owned) { nvrtcDestroyProgram_(&owned); };
  const std::unique_ptr<void, decltype(destroy)> owner(made, destroy);
  const int result = nvrtcCompileProgram_(made, static_cast<int>(options.size()), options.data());
  if (result == kInvalidOption) {
    throw Error(Code::kUnavailable, "NVRTC " + version_ + " does not support " + program.options.front() + ": " +
                                        LogOf(made) + "; install a torch built for a CUDA that supports this GPU");
  }
  if (result != 0) {
    throw Error(Code::kInternal, "NVRTC " + version_ + " does not compile the kernels: " +
                                     nvrtcGetErrorString_(result) + "\n" + LogOf(made));
  }
  size_t size = 0;
  Check(nvrtcGetCUBINSize_(made, &size), "nvrtcGetCUBINSize");
  std::string code(size, '\0');
  Check(nvrtcGetCUBIN_(made, code.data()), "nvrtcGetCUBIN");
  return code;
}

}  // namespace monolith::device
