// Everything of the CUDA launcher but the GPU: a driver of plain functions stands in for NVIDIA's.
#include "device/cuda_launcher.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/launchers_for_test.h"
#include "device/nvrtc.h"

namespace monolith::device {
namespace {

// What the functions below answer, and what they were called with.
struct FakeGpu {
  int init_result = 0, load_result = 0, launch_result = 0;
  void* current = nullptr;
  std::vector<std::string> calls;
  std::vector<std::string> functions;
  FindFirsts launched;
  void* stream = nullptr;
  unsigned grid = 0, block = 0;
};
FakeGpu gpu;
char context, other_context, loaded_code;

int Answer(int* out, int value) {
  *out = value;
  return 0;
}

void AnswerAboutDevices(CudaDriver& driver) {
  driver.Init = [](unsigned) { return gpu.init_result; };
  driver.DriverGetVersion = [](int* version) { return Answer(version, 12020); };
  driver.DeviceGetCount = [](int* count) { return Answer(count, 2); };
  driver.DeviceGet = [](int* device, int ordinal) { return Answer(device, ordinal + 70); };
  driver.DeviceGetName = [](char* name, int size, int) {
    std::strncpy(name, "Fake GPU", static_cast<size_t>(size));
    return 0;
  };
  driver.DeviceGetAttribute = [](int* value, int attribute, int device) {
    if (device != 71) return 101;
    return Answer(value, std::map<int, int>{{16, 132}, {75, 9}, {76, 0}}.at(attribute));
  };
}

void AnswerAboutContexts(CudaDriver& driver) {
  driver.PrimaryCtxRetain = [](void** held, int) {
    gpu.calls.push_back("retain");
    *held = &context;
    return 0;
  };
  driver.PrimaryCtxRelease = [](int) {
    gpu.calls.push_back("release");
    return 0;
  };
  driver.CtxGetCurrent = [](void** current) {
    *current = gpu.current;
    return 0;
  };
  driver.CtxPushCurrent = [](void* pushed) {
    gpu.calls.push_back("push");
    gpu.current = pushed;
    return 0;
  };
  driver.CtxPopCurrent = [](void** popped) {
    gpu.calls.push_back("pop");
    *popped = gpu.current;
    gpu.current = &other_context;
    return 0;
  };
}

void AnswerAboutCode(CudaDriver& driver) {
  driver.ModuleLoadData = [](void** loaded, const void*) {
    *loaded = &loaded_code;
    return gpu.load_result;
  };
  driver.ModuleUnload = [](void*) {
    gpu.calls.push_back("unload");
    return 0;
  };
  driver.ModuleGetFunction = [](void** function, void*, const char* name) {
    gpu.functions.push_back(name);
    *function = reinterpret_cast<void*>(gpu.functions.size());
    return 0;
  };
  driver.LaunchKernel = [](void* function, unsigned grid, unsigned, unsigned, unsigned block, unsigned, unsigned,
                           unsigned, void* stream, void** arguments, void**) {
    gpu.calls.push_back("launch " + gpu.functions[reinterpret_cast<size_t>(function) - 1]);
    gpu.grid = grid;
    gpu.block = block;
    gpu.stream = stream;
    std::memcpy(&gpu.launched, arguments[0], sizeof(gpu.launched));
    return gpu.launch_result;
  };
}

CudaDriver FakeDriver() {
  CudaDriver driver;
  AnswerAboutDevices(driver);
  AnswerAboutContexts(driver);
  AnswerAboutCode(driver);
  driver.GetErrorName = [](int error, const char** text) {
    *text = error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return 0;
  };
  driver.GetErrorString = [](int, const char** text) {
    *text = "what it means";
    return 0;
  };
  return driver;
}

class CudaLauncherTest : public testing::Test {
 protected:
  CudaLauncherTest() {
    gpu = FakeGpu();
    gpu.current = &other_context;
  }

  static CudaLauncher::Compiled Compile(const KernelProgram& program) {
    EXPECT_EQ(program.options.front(), "--gpu-architecture=sm_90");
    return {"code", "13.0"};
  }
  // The message of the Error that a call throws.
  template <typename Call>
  static std::string ErrorOf(Call&& call, Code code) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return {};
  }
};

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(CudaLauncherTest, LaunchesTheNamedKernelWithItsArgumentsInItsContext) {
  uint32_t firsts = 0;
  {
    CudaLauncher launcher(FakeDriver(), 1, Compile);
    EXPECT_EQ(launcher.num_concurrent_blocks(), 264u);
    EXPECT_EQ(launcher.device_name(), "Fake GPU");
    EXPECT_EQ(gpu.functions, std::vector<std::string>(std::begin(kKernelNames), std::end(kKernelNames)));
    gpu.calls.clear();
    launcher.Launch(kBlock + 1, FindFirsts{kBlock + 1, nullptr, &firsts, nullptr}, Stream{77});
    EXPECT_EQ(gpu.calls, (std::vector<std::string>{"push", "launch find_firsts", "pop"}));
    EXPECT_EQ(gpu.launched.num_ids, kBlock + 1);
    EXPECT_EQ(gpu.launched.firsts, &firsts);
    EXPECT_EQ(gpu.grid, 2u);
    EXPECT_EQ(gpu.block, kBlock);
    EXPECT_EQ(gpu.stream, reinterpret_cast<void*>(77));
    gpu.calls.clear();
    gpu.current = &context;
    launcher.Launch(1, FindFirsts{}, Stream{});
    EXPECT_EQ(gpu.calls, std::vector<std::string>{"launch find_firsts"}) << "its context is current";
    launcher.Launch(0, FindFirsts{}, Stream{});
    EXPECT_EQ(gpu.calls.size(), 1u) << "nothing to start";
    gpu.calls.clear();
  }
  EXPECT_EQ(gpu.calls, (std::vector<std::string>{"unload", "release"}));
}

TEST_F(CudaLauncherTest, KernelsThatTheDriverDoesNotLoadNameBothVersions) {
  gpu.load_result = 222;
  const std::string text = ErrorOf([] { CudaLauncher(FakeDriver(), 1, Compile); }, Code::kUnavailable);
  for (const char* part : {"Fake GPU", "CUDA 12.2", "NVRTC 13.0", "sm_90", "what it means", "update the driver"}) {
    EXPECT_HAS(text, part);
  }
  EXPECT_EQ(gpu.calls.back(), "release");
}

TEST_F(CudaLauncherTest, AFailedLaunchNamesItsKernelAndLeavesTheContextOfTheCaller) {
  CudaLauncher launcher(FakeDriver(), 1, Compile);
  gpu.launch_result = 700;
  EXPECT_HAS(ErrorOf([&] { launcher.Launch(1, FindFirsts{}, Stream{}); }, Code::kUnavailable), "find_firsts");
  EXPECT_EQ(gpu.current, &other_context);
  gpu.launch_result = 2;
  ErrorOf([&] { launcher.Launch(1, FindFirsts{}, Stream{}); }, Code::kResourceExhausted);
  gpu.launch_result = 3;
  EXPECT_HAS(ErrorOf([&] { launcher.Launch(1, FindFirsts{}, Stream{}); }, Code::kUnavailable), "fork");
  EXPECT_HAS(ErrorOf([&] { launcher.Launch(uint64_t{1} << 40, FindFirsts{}, Stream{}); }, Code::kInvalidArgument),
             "blocks");
}

TEST_F(CudaLauncherTest, NumbersOfGpusAreChecked) {
  for (const int device : {-1, 2}) {
    const std::string text = ErrorOf([&] { CudaLauncher(FakeDriver(), device, Compile); }, Code::kInvalidArgument);
    EXPECT_HAS(text, "below 2");
    EXPECT_HAS(text, std::to_string(device));
  }
}

TEST_F(CudaLauncherTest, WhatIsMissingIsNamedWithWhatToDo) {
  gpu.init_result = 100;
  const std::string no_gpu = ErrorOf([] { InitCudaDriver(FakeDriver()); }, Code::kUnavailable);
  for (const char* part : {"no GPU", "what it means", "CUDA 12.2", "nvidia-smi"}) EXPECT_HAS(no_gpu, part);
  const std::string no_driver = ErrorOf([] { LoadCudaDriver("libcuda-missing.so.1"); }, Code::kUnavailable);
  for (const char* part : {"driver", "libcuda-missing.so.1", "install"}) EXPECT_HAS(no_driver, part);
  const std::string no_nvrtc = ErrorOf([] { Nvrtc({"libfirst.so.9", "/no/second.so"}); }, Code::kUnavailable);
  for (const char* part : {"NVRTC", "libfirst.so.9", "/no/second.so", "torch"}) EXPECT_HAS(no_nvrtc, part);
  EXPECT_HAS(ErrorOf([] { Nvrtc(std::vector<std::string>{}); }, Code::kUnavailable), "no file was given");
  EXPECT_HAS(ErrorOf([] { Nvrtc({"libc.so.6"}); }, Code::kUnavailable), "nvrtcVersion");
}

TEST_F(CudaLauncherTest, VersionsAreWrittenAsNvidiaWritesThem) {
  EXPECT_EQ(CudaVersionText(12040), "12.4");
  EXPECT_EQ(CudaVersionText(13000), "13.0");
}

// Needs no GPU, but NVRTC.
TEST(NvrtcTest, CompilesTheKernelsForEveryArchitecture) {
  if (NvrtcForTest() == nullptr) GTEST_SKIP() << "MONOLITH_TEST_NVRTC is not the path of NVRTC";
  const Nvrtc nvrtc({"libmissing.so", NvrtcForTest()});
  for (const int architecture : {75, 80, 90}) {
    const std::string code = nvrtc.Compile(KernelProgramFor(architecture));
    EXPECT_EQ(code.substr(1, 3), "ELF") << nvrtc.version() << " " << architecture;
    for (const char* name : kKernelNames) EXPECT_HAS(code, name);
  }
  KernelProgram wrong = KernelProgramFor(90);
  wrong.main += "unknown thing;\n";
  try {
    nvrtc.Compile(wrong);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInternal);
    EXPECT_HAS(std::string(error.what()), "unknown");
    EXPECT_HAS(std::string(error.what()), nvrtc.version());
  }
  try {
    nvrtc.Compile(KernelProgramFor(999));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnavailable);
    EXPECT_HAS(std::string(error.what()), "sm_999");
  }
}

}  // namespace
}  // namespace monolith::device
