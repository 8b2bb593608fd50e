// Runs kernels on this processor, from the text that NVRTC compiles for a GPU: for tests, and for machines without a
// GPU, where it gives the same bits more slowly.
//
// A launch has ended when Launch() returns. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "device/launcher.h"

namespace monolith::device {

class CpuLauncher : public Launcher {
 public:
  enum class Order {
    kAscending,  // one thread after another, on the calling thread
    kShuffled,   // blocks on the threads of the pool, in a different order each time: finds what depends on the order
  };

  explicit CpuLauncher(Order order) : order_(order) {}

  uint32_t num_concurrent_blocks() const override { return 3; }
  void* Allocate(size_t bytes) override;
  void Free(void* memory) noexcept override;
  void Copy(void* to, const void* from, size_t bytes, Stream stream) override;
  void Fill(uint32_t* memory, uint32_t word, size_t num_words, Stream stream) override;
  void Wait(Stream) override {}

 private:
  void Start(KernelId id, uint32_t num_blocks, const void* kernel, Stream stream) override;

  const Order order_;
  std::atomic<uint64_t> num_launches_{0};
};

}  // namespace monolith::device
