// Runs a test of kernels on the CPU launcher in both of its orders, with four threads for the shuffled one; and, on a
// machine with a GPU, there as well if MONOLITH_TEST_NVRTC is the path of NVRTC.
//
// And what a caller of the kernels has to bring along: memory that both can address, sums and sorts.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "device/cpu_launcher.h"
#include "device/cuda_launcher.h"
#include "device/shared_library.h"

namespace monolith::device {

inline const char* NvrtcForTest() { return std::getenv("MONOLITH_TEST_NVRTC"); }

inline bool TestsGpu() {
  static const bool tests = NvrtcForTest() != nullptr && dlopen(kCudaDriverName, RTLD_NOW | RTLD_LOCAL) != nullptr;
  return tests;
}

// The first GPU. Its kernels have ended when a launch returns.
class GpuForTest {
 public:
  static GpuForTest& Get() {
    static GpuForTest* const gpu = new GpuForTest();  // as long as the driver
    return *gpu;
  }
  Launcher& launcher() { return *launcher_; }
  void* Allocate(size_t bytes) {
    void* memory = nullptr;
    EXPECT_EQ(host_alloc_(&memory, bytes, 0), 0);
    return memory;
  }
  void Free(void* memory) { free_host_(memory); }

 private:
  GpuForTest() {
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    launcher_ = MakeCudaLauncher({.device = 0, .nvrtc_paths = {NvrtcForTest()}, .cache_folder = ""});
    const SharedLibrary driver("the driver", {kCudaDriverName}, "");
    int (*retain)(void**, int);
    int (*set_current)(void*);
    driver.Find("cuDevicePrimaryCtxRetain", &retain);
    driver.Find("cuCtxSetCurrent", &set_current);
    driver.Find("cuMemHostAlloc", &host_alloc_);
    driver.Find("cuMemFreeHost", &free_host_);
    void* context = nullptr;
    EXPECT_EQ(retain(&context, 0), 0);
    EXPECT_EQ(set_current(context), 0);
  }

  std::unique_ptr<CudaLauncher> launcher_;
  int (*host_alloc_)(void**, size_t, unsigned) = nullptr;
  int (*free_host_)(void*) = nullptr;
};

// Memory of this process that kernels can address wherever they run, on a boundary of 16 bytes.
template <typename T>
struct SharedAllocator {
  using value_type = T;
  static constexpr std::align_val_t kBoundary{16};

  SharedAllocator() = default;
  template <typename Other>
  SharedAllocator(const SharedAllocator<Other>&) {}  // NOLINT(google-explicit-constructor): as allocators convert

  T* allocate(size_t count) {
    const size_t bytes = count * sizeof(T);
    return static_cast<T*>(TestsGpu() ? GpuForTest::Get().Allocate(bytes) : ::operator new(bytes, kBoundary));
  }
  void deallocate(T* memory, size_t) {
    TestsGpu() ? GpuForTest::Get().Free(memory) : ::operator delete(memory, kBoundary);
  }
  friend bool operator==(SharedAllocator, SharedAllocator) { return true; }
};
template <typename T>
using Shared = std::vector<T, SharedAllocator<T>>;

enum class Where { kAscending, kShuffled, kGpu };

class LauncherTest : public testing::TestWithParam<Where> {
 protected:
  LauncherTest() : threads_before_(NumThreads()) {
    SetNumThreads(4);
    if (GetParam() == Where::kGpu) return;
    own_ = std::make_unique<CpuLauncher>(GetParam() == Where::kShuffled ? CpuLauncher::Order::kShuffled
                                                                        : CpuLauncher::Order::kAscending);
  }
  ~LauncherTest() override { SetNumThreads(threads_before_); }

  Launcher& launcher() { return own_ ? *own_ : GpuForTest::Get().launcher(); }
  template <typename Kernel>
  void Launch(uint64_t num_threads, const Kernel& kernel) {
    launcher().Launch(num_threads, kernel, Stream{});
  }

 private:
  const int threads_before_;
  std::unique_ptr<Launcher> own_;
};

inline std::vector<Where> PlacesForTest() {
  std::vector<Where> places = {Where::kAscending, Where::kShuffled};
  if (TestsGpu()) places.push_back(Where::kGpu);
  return places;
}

inline std::string NameOfPlace(const testing::TestParamInfo<Where>& info) {
  return info.param == Where::kGpu ? "gpu" : info.param == Where::kShuffled ? "shuffled" : "ascending";
}

#define INSTANTIATE_FOR_LAUNCHERS(Test) \
  INSTANTIATE_TEST_SUITE_P(, Test, testing::ValuesIn(PlacesForTest()), NameOfPlace)

inline Shared<int32_t> InclusiveSums(const Shared<int32_t>& values) {
  Shared<int32_t> sums(values.size());
  std::partial_sum(values.begin(), values.end(), sums.begin());
  return sums;
}

// The permutation that sorts values stably.
inline Shared<int64_t> StableOrder(const Shared<int32_t>& values) {
  Shared<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return values[static_cast<size_t>(a)] < values[static_cast<size_t>(b)];
  });
  return order;
}

}  // namespace monolith::device
