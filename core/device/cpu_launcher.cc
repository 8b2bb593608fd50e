#include "device/cpu_launcher.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/hash.h"
#include "base/thread_pool.h"
#include "device/fibers.h"
#include "device/thread_order.h"

namespace monolith::device {
namespace {

constexpr uint32_t kMostTasks = 64;  // of a launch; a task makes its fibers once for all of its blocks

struct CpuKernel {
  bool has_barriers;
  void (*run_thread)(const void* kernel);
  void (*run_threads)(const void* kernel, std::span<const uint32_t> order);
};

template <typename Kernel>
void RunThread(const void* kernel) {
  (*static_cast<const Kernel*>(kernel))();
}

template <typename Kernel>
void RunThreads(const void* kernel, std::span<const uint32_t> order) {
  for (const uint32_t number : order) {
    threadIdx = {number};
    (*static_cast<const Kernel*>(kernel))();
  }
}

constexpr CpuKernel kKernels[] = {
#define MONOLITH_CPU_KERNEL(name, has_barriers, ...) {has_barriers, RunThread<__VA_ARGS__>, RunThreads<__VA_ARGS__>},
    MONOLITH_DEVICE_KERNELS(MONOLITH_CPU_KERNEL)
#undef MONOLITH_CPU_KERNEL
};

// Runs some of the blocks of a launch, in the calling thread.
void RunBlocks(const CpuKernel& kernel, const void* arguments, std::span<const uint32_t> blocks, uint32_t num_blocks,
               uint64_t seed) {
  ThreadOrder order(kBlock, seed);
  std::optional<Fibers> fibers;
  if (kernel.has_barriers) fibers.emplace(kBlock);
  gridDim = {num_blocks};
  blockDim = {kBlock};
  for (const uint32_t block : blocks) {
    blockIdx = {block};
    if (fibers) {
      fibers->Run(kernel.run_thread, arguments, order);
    } else {
      kernel.run_threads(arguments, order.Next());
    }
  }
}

constexpr std::align_val_t kBoundary{256};

}  // namespace

void* CpuLauncher::Allocate(size_t bytes) {
  void* memory = ::operator new(bytes, kBoundary, std::nothrow);
  if (memory == nullptr) {
    throw Error(Code::kResourceExhausted, "no memory for " + std::to_string(bytes) + " bytes of rows");
  }
  return memory;
}

void CpuLauncher::Free(void* memory) noexcept { ::operator delete(memory, kBoundary); }

void CpuLauncher::Copy(void* to, const void* from, size_t bytes, Stream) {
  if (bytes != 0) std::memcpy(to, from, bytes);  // which must not get the null pointer of an empty array
}

void CpuLauncher::Fill(uint32_t* memory, uint32_t word, size_t num_words, Stream) {
  std::fill_n(memory, num_words, word);
}

void CpuLauncher::Start(KernelId id, uint32_t num_blocks, const void* kernel, Stream) {
  const CpuKernel& code = kKernels[static_cast<int>(id)];
  const bool is_shuffled = order_ == Order::kShuffled;
  const uint64_t seed = is_shuffled ? HashId(static_cast<int64_t>(num_launches_++)) | 1 : 0;
  ThreadOrder order(num_blocks, seed);
  const std::span<const uint32_t> blocks = order.Next();
  if (!is_shuffled) return RunBlocks(code, kernel, blocks, num_blocks, 0);
  const uint32_t num_tasks = std::min(num_blocks, kMostTasks);
  ParallelFor(static_cast<int>(num_tasks), [&](int task) {
    const uint64_t begin = uint64_t{num_blocks} * static_cast<uint32_t>(task) / num_tasks;
    const uint64_t end = uint64_t{num_blocks} * (static_cast<uint32_t>(task) + 1) / num_tasks;
    RunBlocks(code, kernel, blocks.subspan(begin, end - begin), num_blocks, Combine(seed, begin) | 1);
  });
}

}  // namespace monolith::device
