#include "device/cuda_driver.h"

#include "base/error.h"
#include "device/shared_library.h"

namespace monolith::device {
namespace {

constexpr int kOutOfMemory = 2;
constexpr int kNotInitialised = 3;

}  // namespace

std::string CudaVersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string CudaDriver::TextOf(int error) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (GetErrorName(error, &name) != 0 || name == nullptr) return "CUDA error " + std::to_string(error);
  GetErrorString(error, &text);
  return text == nullptr ? std::string(name) : std::string(name) + " (" + text + ")";
}

std::string CudaDriver::Version() const {
  int version = 0;
  return DriverGetVersion(&version) == 0 ? CudaVersionText(version) : "of unknown version";
}

void CudaDriver::Check(int result, const std::string& call) const {
  if (result == 0) return;
  std::string message = call + ": " + TextOf(result);
  if (result == kNotInitialised) message += "; a child of a fork cannot use the GPU of its parent: start it by spawn";
  throw Error(result == kOutOfMemory ? Code::kResourceExhausted : Code::kUnavailable, message);
}

CudaDriver LoadCudaDriver(const std::string& library) {
  const SharedLibrary opened("NVIDIA's driver", {library},
                             "install the driver of the GPU, or check that the container has access to it");
  CudaDriver driver;
#define MONOLITH_CUDA_FIND(name, member, arguments) opened.Find(#name, &driver.member);
  MONOLITH_CUDA_FUNCTIONS(MONOLITH_CUDA_FIND)
#undef MONOLITH_CUDA_FIND
  InitCudaDriver(driver);
  return driver;
}

void InitCudaDriver(const CudaDriver& driver) {
  const int result = driver.Init(0);
  if (result != 0) {
    throw Error(Code::kUnavailable, "no GPU can be used: " + driver.TextOf(result) + ", driver for CUDA " +
                                        driver.Version() + "; check nvidia-smi and CUDA_VISIBLE_DEVICES");
  }
}

}  // namespace monolith::device
