// The functions of NVIDIA's driver that kernels need, loaded at run time.
//
// Types of CUDA are opaque here. Thread-safe after loading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace monolith::device {

// Name in the library, member, arguments; as in cuda.h. All return a CUresult, 0 for success.
#define MONOLITH_CUDA_FUNCTIONS(FUNCTION)                                                                          \
  FUNCTION(cuInit, Init, (unsigned flags))                                                                         \
  FUNCTION(cuDriverGetVersion, DriverGetVersion, (int* version))                                                   \
  FUNCTION(cuDeviceGetCount, DeviceGetCount, (int* count))                                                         \
  FUNCTION(cuDeviceGet, DeviceGet, (int* device, int ordinal))                                                     \
  FUNCTION(cuDeviceGetName, DeviceGetName, (char* name, int size, int device))                                     \
  FUNCTION(cuDeviceGetAttribute, DeviceGetAttribute, (int* value, int attribute, int device))                      \
  FUNCTION(cuDevicePrimaryCtxRetain, PrimaryCtxRetain, (void** context, int device))                               \
  FUNCTION(cuDevicePrimaryCtxRelease_v2, PrimaryCtxRelease, (int device))                                          \
  FUNCTION(cuCtxGetCurrent, CtxGetCurrent, (void** context))                                                       \
  FUNCTION(cuCtxPushCurrent_v2, CtxPushCurrent, (void* context))                                                   \
  FUNCTION(cuCtxPopCurrent_v2, CtxPopCurrent, (void** context))                                                    \
  FUNCTION(cuModuleLoadData, ModuleLoadData, (void** module, const void* image))                                   \
  FUNCTION(cuModuleUnload, ModuleUnload, (void* module))                                                           \
  FUNCTION(cuModuleGetFunction, ModuleGetFunction, (void** function, void* module, const char* name))              \
  FUNCTION(cuMemAlloc_v2, MemAlloc, (uint64_t* memory, size_t bytes))                                              \
  FUNCTION(cuMemFree_v2, MemFree, (uint64_t memory))                                                               \
  FUNCTION(cuMemcpyAsync, MemcpyAsync, (uint64_t to, uint64_t from, size_t bytes, void* stream))                   \
  FUNCTION(cuMemsetD32Async, MemsetD32Async, (uint64_t memory, unsigned word, size_t num_words, void* stream))     \
  FUNCTION(cuStreamSynchronize, StreamSynchronize, (void* stream))                                                 \
  FUNCTION(cuLaunchKernel, LaunchKernel,                                                                           \
           (void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
            unsigned block_z, unsigned shared_bytes, void* stream, void** arguments, void** extra))                \
  FUNCTION(cuGetErrorName, GetErrorName, (int error, const char** text))                                           \
  FUNCTION(cuGetErrorString, GetErrorString, (int error, const char** text))

struct CudaDriver {
#define MONOLITH_CUDA_MEMBER(name, member, arguments) int(*member) arguments = nullptr;
  MONOLITH_CUDA_FUNCTIONS(MONOLITH_CUDA_MEMBER)
#undef MONOLITH_CUDA_MEMBER

  // "CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)"
  std::string TextOf(int error) const;
  // The newest version of CUDA that the driver supports: "13.0".
  std::string Version() const;
  // Throws unless `result` is success: kResourceExhausted for no memory, else kUnavailable. `call` begins the message.
  void Check(int result, const std::string& call) const;
};

inline constexpr const char* kCudaDriverName = "libcuda.so.1";

// Loads the driver and initialises it. Throws kUnavailable, with what is missing and what to do, if there is no driver
// or no GPU.
CudaDriver LoadCudaDriver(const std::string& library = kCudaDriverName);
// The part of LoadCudaDriver() that needs no library: throws unless the driver can be used.
void InitCudaDriver(const CudaDriver& driver);

// "13.0" for 13000, the form of cuDriverGetVersion().
std::string CudaVersionText(int version);

}  // namespace monolith::device
