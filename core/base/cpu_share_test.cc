#include "base/cpu_share.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace monolith {
namespace {

namespace fs = std::filesystem;

// The system files of a machine, in a separate folder.
class CpuShareTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "cpu_share_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const fs::path file = root_ + path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  double Quota() const { return CpuQuota(root_); }

  std::string root_;
};

constexpr char kUnified[] = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

TEST_F(CpuShareTest, WithoutControlGroupsThereIsNoQuota) { EXPECT_EQ(Quota(), 0.0); }

TEST_F(CpuShareTest, TheQuotaOfAContainer) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/proc/self/mountinfo", kUnified);
  EXPECT_EQ(Quota(), 0.0);
  Write("/sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(Quota(), 0.0);
  Write("/sys/fs/cgroup/cpu.max", "250000 100000\n");
  EXPECT_EQ(Quota(), 2.5);
}

TEST_F(CpuShareTest, AGroupAboveMayHaveTheSmallestQuota) {
  Write("/proc/self/cgroup", "0::/service/job/task\n");
  Write("/proc/self/mountinfo", kUnified);
  Write("/sys/fs/cgroup/service/job/task/cpu.max", "800000 100000\n");
  EXPECT_EQ(Quota(), 8.0);
  Write("/sys/fs/cgroup/service/cpu.max", "150000 50000\n");
  EXPECT_EQ(Quota(), 3.0);
  Write("/sys/fs/cgroup/other/cpu.max", "100000 100000\n");
  EXPECT_EQ(Quota(), 3.0);
}

TEST_F(CpuShareTest, VersionOneWithItsControllersTogether) {
  Write("/proc/self/cgroup", "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/\n");
  Write("/proc/self/mountinfo",
        "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n");
  Write("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Quota(), 0.0);
  Write("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "400000\n");
  EXPECT_EQ(Quota(), 4.0);
}

// Inside of a container the group has a long name, and its folder is the mount.
TEST_F(CpuShareTest, AMountThatShowsTheGroupItself) {
  Write("/proc/self/cgroup", "4:cpu:/docker/abc\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  Write("/proc/self/mountinfo", "33 31 0:30 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n");
  EXPECT_EQ(Quota(), 0.5);
  Write("/proc/self/mountinfo", "33 31 0:30 /elsewhere /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n");
  EXPECT_EQ(Quota(), 0.5);
}

TEST_F(CpuShareTest, NonsenseIsNoQuota) {
  Write("/proc/self/cgroup", "\n:\n0\n0::/\n");
  for (const char* line : {"", "-", " - ", "1 2 3 - cgroup2", "1 2 3 / /sys/fs/cgroup - cgroup2"}) {
    Write("/proc/self/mountinfo", std::string(line) + "\n" + kUnified);
    for (const char* text : {"", "0 100000", "100000", "100000 0", "-5 100000", "nan 100000", "a b"}) {
      Write("/sys/fs/cgroup/cpu.max", text);
      EXPECT_EQ(Quota(), 0.0) << text;
    }
  }
}

TEST_F(CpuShareTest, TheAffinityOfTheProcessCounts) {
  std::thread([] {  // affinity is per thread
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(sched_getcpu()), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    const CpuShare share = CpuShareOfThisProcess();
    EXPECT_EQ(share.cpus, 1);
    EXPECT_EQ(share.affinity, 1);
    EXPECT_NE(share.why, "");
  })
      .join();
}

}  // namespace
}  // namespace monolith
