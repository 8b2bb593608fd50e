// Where kernels run, and the memory that they use: an NVIDIA GPU (device/cuda_launcher.h) or, with the same text, this
// processor (device/cpu_launcher.h).
//
// A kernel is a struct of device/kernels/: its members are its arguments, its call operator is the work of one thread.
// Launch() takes such a value, so arguments are named and checked by the compiler, and no launcher lists them.
// Launches, copies and fills of one stream run in the order of the calls. Streams belong to the caller. Thread-safe: a
// launcher is constant once it is made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "base/error.h"
#include "device/kernels/all.h"

namespace monolith::device {

// A CUDA stream by its handle; 0 is the default stream. The processor has none and runs a kernel before Launch()
// returns.
struct Stream {
  uintptr_t handle = 0;
};

enum class KernelId : int {
#define MONOLITH_KERNEL_ID(name, has_barriers, ...) name,
  MONOLITH_DEVICE_KERNELS(MONOLITH_KERNEL_ID)
#undef MONOLITH_KERNEL_ID
};

// The name of each kernel, by its id: that of its function in the text for a GPU.
inline constexpr const char* kKernelNames[] = {
#define MONOLITH_KERNEL_NAME(name, has_barriers, ...) #name,
    MONOLITH_DEVICE_KERNELS(MONOLITH_KERNEL_NAME)
#undef MONOLITH_KERNEL_NAME
};
inline constexpr int kNumKernels = sizeof(kKernelNames) / sizeof(kKernelNames[0]);

// Declared for the kernels of the list only: a launch of any other struct does not compile.
template <typename Kernel>
struct IdOf;
#define MONOLITH_KERNEL_ID_OF(name, has_barriers, ...) \
  template <>                                          \
  struct IdOf<__VA_ARGS__> {                           \
    static constexpr KernelId value = KernelId::name;  \
  };
MONOLITH_DEVICE_KERNELS(MONOLITH_KERNEL_ID_OF)
#undef MONOLITH_KERNEL_ID_OF

class Launcher {
 public:
  virtual ~Launcher() = default;

  // Starts enough blocks for `num_threads` threads; a kernel ignores the surplus threads of its last block. Throws
  // kUnavailable if the device cannot start it.
  template <typename Kernel>
  void Launch(uint64_t num_threads, const Kernel& kernel, Stream stream) {
    LaunchBlocks((num_threads + kBlock - 1) / kBlock, kernel, stream);
  }

  // For a kernel whose blocks share work among themselves.
  template <typename Kernel>
  void LaunchBlocks(uint64_t num_blocks, const Kernel& kernel, Stream stream) {
    static_assert(sizeof(Kernel) <= 4096, "no device takes more bytes of arguments");
    if (num_blocks > kMaxBlocks) {
      throw Error(Code::kInvalidArgument, "a launch has at most 2^31 - 1 blocks, got " + std::to_string(num_blocks));
    }
    if (num_blocks != 0) {
      Start(IdOf<Kernel>::value, static_cast<uint32_t>(num_blocks), &kernel, stream);
    }
  }

  // Blocks that run at a time: the number to launch where blocks take work from a list of unknown length.
  virtual uint32_t num_concurrent_blocks() const = 0;

  // Memory of the device, on a boundary of 256 bytes. Throws kResourceExhausted if there is not enough. Free() waits
  // for what uses the memory and ignores null.
  virtual void* Allocate(size_t bytes) = 0;
  virtual void Free(void* memory) noexcept = 0;

  // Between memory of the device and of this process, in any direction. Memory of this process that is not page-locked
  // may be reused when the call returns, and has been written when it returns.
  virtual void Copy(void* to, const void* from, size_t bytes, Stream stream) = 0;
  // Writes a word over and over.
  virtual void Fill(uint32_t* memory, uint32_t word, size_t num_words, Stream stream) = 0;
  // Returns once everything before in the stream has ended. Throws kUnavailable if some of it failed.
  virtual void Wait(Stream stream) = 0;

 private:
  static constexpr uint64_t kMaxBlocks = std::numeric_limits<int32_t>::max();

  // `kernel` is valid until the call returns.
  virtual void Start(KernelId id, uint32_t num_blocks, const void* kernel, Stream stream) = 0;
};

}  // namespace monolith::device
