// Runs kernels on an NVIDIA GPU: finds it, compiles the kernels for it, and starts them.
//
// Nothing of CUDA is needed to build this: driver and compiler are opened at run time. A launcher holds the GPU's
// primary context, the one that torch uses; launches are ordered by their streams alone. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda_driver.h"
#include "device/kernel_program.h"
#include "device/launcher.h"

namespace monolith::device {

class CudaLauncher final : public Launcher {
 public:
  // The machine code of a program, and the version of the compiler that made it.
  struct Compiled {
    std::string code;
    std::string compiler;
  };
  using Compile = std::function<Compiled(const KernelProgram& program)>;

  // `device` is the GPU's number. Throws kInvalidArgument if there is none of this number, and kUnavailable, with the
  // versions of driver and compiler, if the kernels do not run on it.
  CudaLauncher(const CudaDriver& driver, int device, const Compile& compile);
  ~CudaLauncher() override;
  CudaLauncher(const CudaLauncher&) = delete;
  CudaLauncher& operator=(const CudaLauncher&) = delete;

  uint32_t num_concurrent_blocks() const override { return num_concurrent_blocks_; }
  void* Allocate(size_t bytes) override;
  void Free(void* memory) noexcept override;
  void Copy(void* to, const void* from, size_t bytes, Stream stream) override;
  void Fill(uint32_t* memory, uint32_t word, size_t num_words, Stream stream) override;
  void Wait(Stream stream) override;
  const std::string& device_name() const { return device_name_; }

 private:
  class InContext;

  void Start(KernelId id, uint32_t num_blocks, const void* kernel, Stream stream) override;
  int Attribute(int attribute) const;
  void Describe(int ordinal);
  void LoadKernels(const Compile& compile);

  const CudaDriver driver_;
  int device_ = 0;
  std::string device_name_;
  uint32_t num_concurrent_blocks_ = 0;
  int architecture_ = 0;
  void* context_ = nullptr;
  void* module_ = nullptr;
  void* functions_[kNumKernels] = {};
};

struct CudaOptions {
  int device = 0;
  std::vector<std::string> nvrtc_paths;  // NVRTC is the first of these that can be opened
  std::string cache_folder;              // of compiled kernels; empty: none are kept
};

// Throws as the constructor, and kUnavailable if driver or compiler are missing.
std::unique_ptr<CudaLauncher> MakeCudaLauncher(const CudaOptions& options);

}  // namespace monolith::device
