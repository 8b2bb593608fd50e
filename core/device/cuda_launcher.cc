#include "device/cuda_launcher.h"

#include "base/error.h"
#include "device/kernel_cache.h"
#include "device/nvrtc.h"

namespace monolith::device {
namespace {

// Attributes of a device, as in cuda.h.
constexpr int kNumMultiprocessors = 16;
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;

constexpr uint32_t kBlocksOfMultiprocessor = 2;  // that run at a time, of the kernels with the most shared memory

std::string ArchitectureText(int architecture) { return "sm_" + std::to_string(architecture); }

}  // namespace

// Makes the context current for the calling thread, unless it is; torch may have another GPU current.
class CudaLauncher::InContext {
 public:
  explicit InContext(const CudaLauncher& launcher) : driver_(launcher.driver_) {
    void* current = nullptr;
    driver_.Check(driver_.CtxGetCurrent(&current), "cuCtxGetCurrent");
    if (current == launcher.context_) return;
    driver_.Check(driver_.CtxPushCurrent(launcher.context_), "cuCtxPushCurrent");
    is_pushed_ = true;
  }
  ~InContext() {
    void* popped = nullptr;
    if (is_pushed_) driver_.CtxPopCurrent(&popped);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

 private:
  const CudaDriver& driver_;
  bool is_pushed_ = false;
};

CudaLauncher::CudaLauncher(const CudaDriver& driver, int device, const Compile& compile) : driver_(driver) {
  Describe(device);
  driver_.Check(driver_.PrimaryCtxRetain(&context_, device_), device_name_ + ": cuDevicePrimaryCtxRetain");
  try {
    LoadKernels(compile);
  } catch (...) {
    driver_.PrimaryCtxRelease(device_);
    throw;
  }
}

// Errors are ignored: at the end of a process the driver may have ended first.
CudaLauncher::~CudaLauncher() {
  try {
    const InContext in_context(*this);
    driver_.ModuleUnload(module_);
  } catch (const Error&) {
    return;
  }
  driver_.PrimaryCtxRelease(device_);
}

int CudaLauncher::Attribute(int attribute) const {
  int value = 0;
  driver_.Check(driver_.DeviceGetAttribute(&value, attribute, device_), device_name_ + ": cuDeviceGetAttribute");
  return value;
}

void CudaLauncher::Describe(int ordinal) {
  int count = 0;
  driver_.Check(driver_.DeviceGetCount(&count), "cuDeviceGetCount");
  if (ordinal < 0 || ordinal >= count) {
    throw Error(Code::kInvalidArgument, "number of a GPU must be at least 0 and below " + std::to_string(count) +
                                            ", how many there are, got " + std::to_string(ordinal));
  }
  driver_.Check(driver_.DeviceGet(&device_, ordinal), "cuDeviceGet");
  char name[256] = {};
  driver_.Check(driver_.DeviceGetName(name, sizeof(name) - 1, device_), "cuDeviceGetName");
  device_name_ = name;
  num_concurrent_blocks_ = kBlocksOfMultiprocessor * static_cast<uint32_t>(Attribute(kNumMultiprocessors));
  architecture_ = 10 * Attribute(kCapabilityMajor) + Attribute(kCapabilityMinor);
}

void CudaLauncher::LoadKernels(const Compile& compile) {
  const Compiled compiled = compile(KernelProgramFor(architecture_));
  const InContext in_context(*this);
  const int result = driver_.ModuleLoadData(&module_, compiled.code.data());
  if (result != 0) {
    throw Error(Code::kUnavailable, device_name_ + ": the driver, for CUDA " + driver_.Version() +
                                        ", does not load kernels that NVRTC " + compiled.compiler + " compiled for " +
                                        ArchitectureText(architecture_) + ": " + driver_.TextOf(result) +
                                        "; update the driver, or install a torch built for an older CUDA");
  }
  for (int id = 0; id < kNumKernels; ++id) {
    driver_.Check(driver_.ModuleGetFunction(&functions_[id], module_, kKernelNames[id]),
                  std::string("cuModuleGetFunction of ") + kKernelNames[id]);
  }
}

void CudaLauncher::Start(KernelId id, uint32_t num_blocks, const void* kernel, Stream stream) {
  const auto number = static_cast<int>(id);
  void* arguments[] = {const_cast<void*>(kernel)};  // which the driver copies
  const InContext in_context(*this);
  const int result = driver_.LaunchKernel(functions_[number], num_blocks, 1, 1, kBlock, 1, 1, 0,
                                          reinterpret_cast<void*>(stream.handle), arguments, nullptr);
  if (result != 0) driver_.Check(result, device_name_ + ": launch of " + kKernelNames[number]);
}

void* CudaLauncher::Allocate(size_t bytes) {
  uint64_t memory = 0;
  const InContext in_context(*this);
  if (bytes == 0) return nullptr;
  driver_.Check(driver_.MemAlloc(&memory, bytes), device_name_ + ": memory for " + std::to_string(bytes) + " bytes");
  return reinterpret_cast<void*>(memory);
}

void CudaLauncher::Free(void* memory) noexcept {
  if (memory == nullptr) return;
  try {
    const InContext in_context(*this);
    driver_.MemFree(reinterpret_cast<uint64_t>(memory));
  } catch (const Error&) {  // at the end of a process the driver may have ended first
  }
}

void CudaLauncher::Copy(void* to, const void* from, size_t bytes, Stream stream) {
  if (bytes == 0) return;
  const InContext in_context(*this);
  driver_.Check(driver_.MemcpyAsync(reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from), bytes,
                                    reinterpret_cast<void*>(stream.handle)),
                device_name_ + ": copy");
}

void CudaLauncher::Fill(uint32_t* memory, uint32_t word, size_t num_words, Stream stream) {
  if (num_words == 0) return;
  const InContext in_context(*this);
  driver_.Check(driver_.MemsetD32Async(reinterpret_cast<uint64_t>(memory), word, num_words,
                                       reinterpret_cast<void*>(stream.handle)),
                device_name_ + ": fill");
}

void CudaLauncher::Wait(Stream stream) {
  const InContext in_context(*this);
  driver_.Check(driver_.StreamSynchronize(reinterpret_cast<void*>(stream.handle)), device_name_ + ": a kernel");
}

std::unique_ptr<CudaLauncher> MakeCudaLauncher(const CudaOptions& options) {
  const CudaDriver driver = LoadCudaDriver();
  const Nvrtc nvrtc(options.nvrtc_paths);
  const KernelCache cache(options.cache_folder);
  return std::make_unique<CudaLauncher>(driver, options.device, [&](const KernelProgram& program) {
    std::string code = cache.CodeFor(KeyOf(program, nvrtc.version()), [&] { return nvrtc.Compile(program); });
    return CudaLauncher::Compiled{std::move(code), nvrtc.version()};
  });
}

}  // namespace monolith::device
